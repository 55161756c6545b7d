// The variables of torchrun, of our launcher and of Slurm.
#include "launch/process/environment.hpp"

#include <map>

#include "launch/hosts/slurm.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

// Lines of NAME=VALUE.
TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  std::map<std::string, std::string> variables;
  const auto text = fuzz::text_of(data, bytes);
  for (std::size_t at = 0; at < text.size();) {
    const auto line = text.substr(at, text.find('\n', at) - at);
    const auto equals = line.find('=');
    if (equals != line.npos && line.find('\0') == line.npos)
      variables[std::string(line.substr(0, equals))] = line.substr(equals + 1);
    at += line.size() + 1;
  }
  const auto get = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  fuzz::try_input([&] {
    const auto place = read_environment(get);
    if (place.rank < 0 || place.world_size < 1 || place.local_rank < 0 || place.slot < 0) std::abort();
  });
  return fuzz::try_input([&] {
    const auto slurm = read_slurm(get);
    if (slurm && (slurm->node < 0 || static_cast<std::size_t>(slurm->node) >= slurm->hosts.size())) std::abort();
  });
}
