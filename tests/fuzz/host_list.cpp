// Host files, the --hosts flag, Slurm's lists.
#include "launch/hosts/host_list.hpp"

#include "launch/hosts/slurm.hpp"
#include "launch/hosts/ssh_command.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 1) return 0;
  const auto text = fuzz::text_of(data + 1, bytes - 1);
  return fuzz::try_input([&] {
    if (data[0] % 4 == 2) return (void)expand_slurm_nodes(text);
    if (data[0] % 4 == 3) return (void)expand_slurm_tasks(text);
    const auto hosts = data[0] % 4 == 0 ? parse_host_list(text, "hosts") : parse_host_flag(text);
    (void)assign_ranks(hosts);
    for (const auto& host : hosts) {
      // No host name becomes an option of ssh's.
      const auto command = ssh_command(host, {"true"});
      bool options_ended = false;
      for (const auto& word : command) {
        if (options_ended && word.starts_with("-")) std::abort();
        options_ended = options_ended || word == "--";
        if (options_ended && word == "true") break;
      }
      if (!options_ended) std::abort();
    }
  });
}
