#include "launch/hosts/near_cpus.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/number_of.hpp"

namespace troupe {
namespace {

constexpr int kMostCpus = 65'536;

/// The system's set of CPUs, for more of them than a cpu_set_t has room for.
class CpuSet {
 public:
  void add(int cpu) { CPU_SET_S(static_cast<std::size_t>(cpu), size(), set_.get()); }
  bool has(int cpu) const { return CPU_ISSET_S(static_cast<std::size_t>(cpu), size(), set_.get()) != 0; }
  cpu_set_t* get() const { return set_.get(); }
  static std::size_t size() { return CPU_ALLOC_SIZE(kMostCpus); }

 private:
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };
  static cpu_set_t* make() {
    auto* const set = CPU_ALLOC(kMostCpus);
    if (set == nullptr) throw std::bad_alloc();
    CPU_ZERO_S(size(), set);
    return set;
  }
  std::unique_ptr<cpu_set_t, Free> set_{make()};
};

std::string_view without_space_behind(std::string_view text) {
  const auto last = text.find_last_not_of(" \n");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

/// The first line of a file of the kernel; nothing if it can't be read.
std::optional<std::string> line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file) return std::nullopt;
  std::getline(file, line);
  return std::string(without_space_behind(line));
}

}  // namespace

std::optional<CpuList> parse_cpu_list(std::string_view text) {
  text = without_space_behind(text);
  std::set<int> cpus;
  if (text.empty()) return CpuList{};
  const auto cpu_of = [](std::string_view word) {
    const bool digits = !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
    const auto number = digits ? number_of<int>(word) : std::nullopt;
    return number && *number < kMostCpus ? number : std::nullopt;
  };
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    const auto range = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
    const auto dash = range.find('-');
    const auto first = cpu_of(range.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : cpu_of(range.substr(dash + 1));
    if (!first || !last || *last < *first) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.insert(cpu);
  }
  return CpuList(cpus.begin(), cpus.end());
}

std::string cpu_list_text(const CpuList& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    auto end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(cpus[i]);
    if (end - i > 1) text += "-" + std::to_string(cpus[end - 1]);
    i = end;
  }
  return text;
}

NearCpus near_cpus(const std::string& address, const CpuList& allowed, const std::string& devices) {
  if (address.empty()) return {{}, "the driver does not know the GPU's PCI address"};
  const auto folder = devices + "/" + address;
  if (line_of(folder + "/numa_node") == "-1") return {{}, folder + "/numa_node is -1: the kernel knows no node for it"};
  const auto path = folder + "/local_cpulist";
  const auto line = line_of(path);
  if (!line) return {{}, path + " cannot be read"};
  const auto near = parse_cpu_list(*line);
  if (!near) return {{}, path + " is no list of CPUs"};
  if (near->empty()) return {{}, path + " is empty"};
  NearCpus found;
  std::set_intersection(near->begin(), near->end(), allowed.begin(), allowed.end(), std::back_inserter(found.cpus));
  if (found.cpus.empty())
    found.problem = path + " has " + cpu_list_text(*near) + ", and this process may use " + cpu_list_text(allowed);
  return found;
}

CpuList allowed_cpus() {
  const CpuSet set;
  CpuList cpus;
  if (::sched_getaffinity(0, CpuSet::size(), set.get()) != 0) return cpus;
  for (int cpu = 0; cpu < kMostCpus; ++cpu) {
    if (set.has(cpu)) cpus.push_back(cpu);
  }
  return cpus;
}

void bind_thread(const CpuList& cpus) {
  CpuSet set;
  for (const auto cpu : cpus) set.add(cpu);
  if (::sched_setaffinity(0, CpuSet::size(), set.get()) == 0) return;
  throw Error(ErrorCode::unavailable, "bind_cpus",
              "this process can't be bound to CPUs " + cpu_list_text(cpus) + ": " + std::strerror(errno),
              "leave it off");
}

}  // namespace troupe
