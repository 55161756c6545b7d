#include "launch/hosts/host_facts.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "launch/process/build_id.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/local_address.hpp"
#include "launch/process/piped_command.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::string text(1 << 16, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, file.gcount())));
  return text;
}

std::uint64_t limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return limit.rlim_cur;
}

std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                sizeof text);  // NOLINT: the sockets API
  } else if (address->sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);  // NOLINT
  }
  return text;
}

std::string addresses_here() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return {};
  std::string found;
  for (const auto* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_RUNNING) == 0) continue;
    if (const auto address = numeric(at->ifa_addr); !address.empty())
      found += (found.empty() ? "" : ",") + std::string(at->ifa_name) + " " + address;
  }
  ::freeifaddrs(all);
  return found;
}

// The nearest folder above that exists says how much is free and whether it can be made.
void look_at_run_dir(HostFacts& facts) {
  std::error_code ignored;
  auto folder = std::filesystem::absolute(facts.run_dir.empty() ? "." : facts.run_dir, ignored);
  facts.run_dir = folder.string();
  while (!std::filesystem::exists(folder, ignored) && folder != folder.parent_path()) folder = folder.parent_path();
  if (!std::filesystem::is_directory(folder, ignored)) {
    facts.run_dir_error = folder.string() + " is not a folder";
    return;
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) facts.run_dir_error = folder.string() + ": " + std::strerror(errno);
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) == 0) facts.run_dir_free = disk.f_bavail * disk.f_frsize;
}

}  // namespace

std::uint64_t control_group_memory_limit(std::string_view own_groups,
                                         const std::function<std::string(const std::string& path)>& read) {
  std::uint64_t least = kUnlimited;
  const auto consider = [&](const std::string& path) {
    const auto text = read(path);
    std::uint64_t limit = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), limit);
    // "max", or in version 1 a number beyond all memory, is no limit.
    if (failure == std::errc() && limit < (std::uint64_t{1} << 60)) least = std::min(least, limit);
  };
  while (!own_groups.empty()) {  // `0::/a/b` is version 2, `4:memory:/a/b` version 1
    const auto line = own_groups.substr(0, own_groups.find('\n'));
    own_groups.remove_prefix(std::min(own_groups.size(), line.size() + 1));
    const auto first = line.find(':'), second = line.find(':', first == std::string_view::npos ? first : first + 1);
    if (second == std::string_view::npos) continue;
    const auto controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const bool two = controllers == ",,";
    if (!two && controllers.find(",memory,") == std::string::npos) continue;
    const std::string root = two ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory",
                      file = two ? "/memory.max" : "/memory.limit_in_bytes";
    std::string group(line.substr(second + 1));
    for (;;) {
      if (group == "/") group.clear();
      consider(root + group + file);
      if (group.empty()) break;
      group.erase(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
    }
  }
  return least;
}

std::string gpus_in(std::string_view lines, const std::function<std::string(const std::string& address)>& node_of) {
  std::string gpus;
  std::istringstream all{std::string(lines)};
  for (std::string line; std::getline(all, line);) {
    std::vector<std::string> fields;
    std::istringstream words(line);
    for (std::string field; std::getline(words, field, ',');)
      fields.push_back(field.substr(std::min(field.size(), field.find_first_not_of(' '))));
    if (fields.size() != 4) continue;
    // nvidia-smi writes the domain with 8 digits and capitals, Linux with 4 and small ones.
    auto address = fields[3].size() > 4 ? fields[3].substr(4) : "";
    std::transform(address.begin(), address.end(), address.begin(), [](unsigned char c) { return std::tolower(c); });
    auto node = node_of(address);
    while (!node.empty() && std::isspace(static_cast<unsigned char>(node.back()))) node.pop_back();
    gpus += (gpus.empty() ? "" : "; ") + fields[0] + ", " + fields[1] + ", driver " + fields[2];
    if (!node.empty() && node != "-1") gpus += ", NUMA node " + node;
  }
  return gpus;
}

namespace {

std::string gpus_here() {
  std::string lines;
  try {
    PipedCommand command(
        {"nvidia-smi", "--query-gpu=name,memory.total,driver_version,pci.bus_id", "--format=csv,noheader"});
    const auto deadline = PipedCommand::Clock::now() + std::chrono::seconds(10);
    while (const auto line = command.read_line(deadline)) lines += *line + "\n";
  } catch (const Error&) {  // there is no such program, and so no driver
  }
  return gpus_in(lines,
                 [](const std::string& address) { return text_of("/sys/bus/pci/devices/" + address + "/numa_node"); });
}

}  // namespace

HostFacts gather_host_facts(const std::string& version, const std::string& run_dir) {
  HostFacts facts;
  facts.version = version;
  facts.build_id = program_build_id();
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  facts.hostname = name;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  facts.cores = ::sched_getaffinity(0, sizeof cores, &cores) == 0
                    ? static_cast<std::uint64_t>(CPU_COUNT(&cores))
                    : static_cast<std::uint64_t>(::sysconf(_SC_NPROCESSORS_ONLN));
  facts.memory =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  facts.memory_limit = control_group_memory_limit(text_of("/proc/self/cgroup"), text_of);
  facts.locked_memory = limit_of(RLIMIT_MEMLOCK);
  facts.open_files = limit_of(RLIMIT_NOFILE);
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0 && ::access("/dev/shm", W_OK) == 0) {
    facts.shm = shm.f_blocks * shm.f_frsize;
    facts.shm_free = shm.f_bavail * shm.f_frsize;
  }
  facts.run_dir = run_dir;
  look_at_run_dir(facts);
  facts.infiniband = ::access("/dev/infiniband", F_OK) == 0 ? 1 : 0;
  unsigned first = 0, last = 0;
  if (std::sscanf(text_of("/proc/sys/net/ipv4/ip_local_port_range").c_str(), "%u %u", &first, &last) == 2) {
    facts.first_port = first;
    facts.last_port = last;
  }
  facts.addresses = addresses_here();
  facts.gpus = gpus_here();
  return facts;
}

std::string to_line(const HostFacts& facts) {
  nlohmann::json line;
  HostFacts::each(facts, [&](const char* name, const auto& field) { line[name] = field; });
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HostFacts host_facts_from_line(std::string_view line) {
  const auto refuse = [](const std::string& cause) {
    throw Error(ErrorCode::bad_data, "a host's facts", cause, "install the same troupe on every host");
  };
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) refuse("'" + displayable(line) + "' is not a JSON object");
  HostFacts facts;
  HostFacts::each(facts, [&](const char* name, auto& field) {
    const auto found = json.find(name);
    if (found == json.end()) return;
    // A number below 0 would be converted.
    if (found->type() != nlohmann::json(field).type())
      refuse("'" + std::string(name) + "' cannot be " + displayable(found->dump()));
    found->get_to(field);
  });
  return facts;
}

std::vector<std::string> resolve_name(const std::string& name, std::string& why) {
  int failure = 0;
  const auto all = look_up(name, nullptr, AF_UNSPEC, 0, failure);
  std::vector<std::string> found;
  for (const auto* at = all.get(); at != nullptr; at = at->ai_next) {
    if (auto address = numeric(at->ai_addr);
        !address.empty() && std::find(found.begin(), found.end(), address) == found.end())
      found.push_back(std::move(address));
  }
  if (found.empty()) why = all ? "it has no address" : ::gai_strerror(failure);
  return found;
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

}  // namespace troupe
