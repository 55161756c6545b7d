// TOML files and values of flags.
#include "launch/config/config.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  static const fuzz::InputFile file("config.toml");
  const auto text = fuzz::text_of(data, bytes);
  Config config;
  bool accepted = false;
  const int result = fuzz::try_input([&] {
    if (const auto equals = text.find('='); bytes > 0 && data[0] == '-' && equals != text.npos) {
      set_config_value(config, std::string(text.substr(1, equals - 1)), std::string(text.substr(equals + 1)), "flag");
    } else {
      read_config_file(config, file.write(text));
    }
    accepted = true;
  });
  if (!accepted) return result;
  // What was accepted can be written and read again; whatever that throws is a finding.
  Config again;
  read_config_file(again, file.write(config_to_toml(config)));
  if (config_to_json(again) != config_to_json(config)) std::abort();
  return result;
}
