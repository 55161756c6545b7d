#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

/// A machine's facts for `troupe doctor`, as numbers; the judgement is elsewhere. Amounts are bytes.
struct HostFacts {
  std::string version;
  std::string build_id;
  std::string hostname;
  std::uint64_t cores = 0;                   ///< that this process may use
  std::uint64_t memory = 0;                  ///< of the machine
  std::uint64_t memory_limit = kUnlimited;   ///< of our control group and those above it
  std::uint64_t locked_memory = kUnlimited;  ///< RLIMIT_MEMLOCK
  std::uint64_t open_files = kUnlimited;     ///< RLIMIT_NOFILE
  std::uint64_t shm = 0;                     ///< capacity of /dev/shm; 0: there is none
  std::uint64_t shm_free = 0;
  std::string run_dir;
  std::string run_dir_error;  ///< why it cannot be written; empty: it can
  std::uint64_t run_dir_free = 0;
  std::uint64_t infiniband = 0;                 ///< 1: there is such a device
  std::uint64_t first_port = 0, last_port = 0;  ///< that the kernel gives to sockets without one
  std::string addresses;                        ///< `lo 127.0.0.1,eth0 10.0.0.2`: of interfaces that are up

  std::string gpus;  ///< as nvidia-smi lists them: `NVIDIA H200, 143771 MiB, driver 580.159.04, NUMA node 0; ...`

  bool operator==(const HostFacts&) const = default;

  /// Calls `visit(name, field)` for every field, in this order.
  template <class Facts, class Visitor>
  static void each(Facts& facts, Visitor&& visit) {
    visit("version", facts.version);
    visit("build_id", facts.build_id);
    visit("hostname", facts.hostname);
    visit("cores", facts.cores);
    visit("memory", facts.memory);
    visit("memory_limit", facts.memory_limit);
    visit("locked_memory", facts.locked_memory);
    visit("open_files", facts.open_files);
    visit("shm", facts.shm);
    visit("shm_free", facts.shm_free);
    visit("run_dir", facts.run_dir);
    visit("run_dir_error", facts.run_dir_error);
    visit("run_dir_free", facts.run_dir_free);
    visit("infiniband", facts.infiniband);
    visit("first_port", facts.first_port);
    visit("last_port", facts.last_port);
    visit("addresses", facts.addresses);
    visit("gpus", facts.gpus);
  }
};

/// Looks at this machine. `run_dir` need not exist yet.
HostFacts gather_host_facts(const std::string& version, const std::string& run_dir);

/// One line of JSON, and back. Unknown names are passed over, missing ones keep their default. Throws
/// Error(bad_data).
std::string to_line(const HostFacts& facts);
HostFacts host_facts_from_line(std::string_view line);

/// The `gpus` of HostFacts in nvidia-smi's lines `NAME, MEMORY, DRIVER, PCI ADDRESS`; `node_of` gives the NUMA node of
/// a PCI address, as the file numa_node has it, or "". Lines of another form are passed over.
std::string gpus_in(std::string_view lines, const std::function<std::string(const std::string& address)>& node_of);

/// The addresses that a name has here, IPv4 and IPv6 in text, in getaddrinfo's order. Empty: none, and `why` has the
/// reason.
std::vector<std::string> resolve_name(const std::string& name, std::string& why);
/// Whether an address in text is of the loopback interface.
bool is_loopback(const std::string& address);

/// The smallest memory limit from a control group up to the root; `read` gives a file's text, or nothing ("") if it is
/// not there. Version 1 and 2; `own_groups` is the text of /proc/self/cgroup.
std::uint64_t control_group_memory_limit(std::string_view own_groups,
                                         const std::function<std::string(const std::string& path)>& read);

}  // namespace troupe
