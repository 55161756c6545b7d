// A coordinator's journal, as a crash or a bad disk leaves it. The hash of a record is put right, or nothing behind it
// would ever be tried.
#include "launch/launcher/journal.hpp"

#include <cstring>

#include "tensor_io/files/xxh3.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

namespace {

std::string record(std::uint32_t type, std::string_view payload) {
  std::string bytes(8, '\0');
  const auto length = static_cast<std::uint32_t>(payload.size());
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + 4, &type, sizeof type);
  bytes += payload;
  const auto hash = xxh3(bytes);
  return bytes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
}

}  // namespace

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  static const fuzz::InputFile file("journal");
  if (bytes < 1) return 0;
  const auto text = fuzz::text_of(data + 1, bytes - 1);
  std::string content(text);
  if (const auto type = data[0] % 4; type != 0)
    content = std::string("TRJL\2\0\0\0", 8) + record(type, text) + record(2, text);
  const auto path = file.write(content);
  return fuzz::try_input([&] {
    Membership membership;
    {
      Journal journal(path, "0123456789abcdef");
      membership = journal.last().value_or(Membership{});
      membership.generation += 1;
      journal.append(membership);
    }
    if (Journal(path, "0123456789abcdef").last()->generation != membership.generation) std::abort();
  });
}
