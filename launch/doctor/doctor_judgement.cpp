#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "launch/doctor/doctor.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/formatted.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

std::string bytes_text(std::uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  const double amount = static_cast<double>(bytes);
  if (bytes >= kGiB) return formatted("%.1f GiB", amount / static_cast<double>(kGiB));
  if (bytes >= kMiB) return formatted("%.0f MiB", amount / static_cast<double>(kMiB));
  return formatted("%.0f KiB", amount / 1024);
}

std::string time_text(std::chrono::nanoseconds time) {
  const double seconds = std::abs(std::chrono::duration<double>(time).count());
  if (seconds >= 1) return formatted("%.1f s", seconds);
  return seconds >= 1e-3 ? formatted("%.1f ms", seconds * 1e3) : formatted("%.0f us", seconds * 1e6);
}

std::string rate_text(double bytes_per_second) {
  const double bits = bytes_per_second * 8;
  return bits >= 1e9 ? formatted("%.1f Gbit/s", bits / 1e9) : formatted("%.1f Mbit/s", bits / 1e6);
}

Finding finding(const std::string& host, const char* check, std::string found) {
  return {host, check, Verdict::ok, std::move(found), {}};
}

void worsen(Finding& finding, Verdict verdict, const std::string& remedy) {
  finding.verdict = verdict;
  finding.remedy = remedy;
}

bool has_other_than_loopback(std::string_view addresses) {
  while (!addresses.empty()) {
    const auto one = addresses.substr(0, addresses.find(','));
    addresses.remove_prefix(std::min(addresses.size(), one.size() + 1));
    const auto space = one.find(' ');
    const std::string address(space == std::string_view::npos ? one : one.substr(space + 1));
    if (!is_loopback(address) && !address.starts_with("fe80:")) return true;
  }
  return false;
}

// How many different ones the text of HostFacts::gpus names.
std::size_t numa_nodes_of(std::string_view gpus) {
  constexpr std::string_view kNode = ", NUMA node ";
  std::set<std::string_view> nodes;
  for (auto at = gpus.find(kNode); at != std::string_view::npos; at = gpus.find(kNode)) {
    gpus.remove_prefix(at + kNode.size());
    nodes.insert(gpus.substr(0, gpus.find(';')));
  }
  return nodes.size();
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// What ssh says last is usually why.
std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  const auto newline = text.rfind('\n');
  return newline == std::string::npos ? text : text.substr(newline + 1);
}

}  // namespace

const char* to_string(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::ok: return "ok";
    case Verdict::warn: return "warn";
    case Verdict::fail: return "fail";
  }
  return "fail";
}

std::vector<Finding> judge_host(const std::string& host, const HostFacts& facts, int slots, int hosts) {
  std::vector<Finding> findings;
  const auto add = [&](const char* check, std::string found) -> Finding& {
    return findings.emplace_back(finding(host, check, std::move(found)));
  };

  add("version", "troupe " + facts.version + ", build " + facts.build_id.substr(0, 12) + ", on " + facts.hostname);

  auto& cores =
      add("cores", std::to_string(facts.cores) + " for " + std::to_string(slots) + (slots == 1 ? " slot" : " slots"));
  if (static_cast<std::uint64_t>(slots) > facts.cores)
    worsen(cores, Verdict::warn, "use fewer slots: ranks that share cores are rarely faster");

  const auto memory = std::min(facts.memory, facts.memory_limit);
  auto& room =
      add("memory", bytes_text(memory) + (facts.memory_limit < facts.memory ? ", the control group's limit" : ""));
  if (memory < static_cast<std::uint64_t>(slots) * kGiB / 2)
    worsen(room, Verdict::warn,
           "a rank takes about 512 MiB before its model: give the container more memory, or the host fewer slots");

  auto& locked =
      add("memlock", bytes_text(facts.locked_memory) + (facts.infiniband != 0 ? ", and InfiniBand needs it" : ""));
  if (facts.infiniband != 0 && facts.locked_memory < kGiB)
    worsen(locked, Verdict::warn, "raise it (ulimit -l unlimited, or docker run --ulimit memlock=-1)");

  auto& files =
      add("nofile", facts.open_files == kUnlimited ? "unlimited" : std::to_string(facts.open_files) + " open files");
  if (facts.open_files < 256) {
    worsen(files, Verdict::fail, "raise it (ulimit -n 65536)");
  } else if (facts.open_files < 4096) {
    worsen(files, Verdict::warn, "raise it (ulimit -n 65536): every rank has sockets to every other");
  }

  auto& shm =
      add("shm", facts.shm == 0 ? "/dev/shm is missing or cannot be written"
                                : "/dev/shm holds " + bytes_text(facts.shm) + ", free " + bytes_text(facts.shm_free));
  if (facts.shm == 0) {
    worsen(shm, Verdict::fail, "mount a tmpfs there: ranks of one host exchange tensors in it");
  } else if (facts.shm_free < static_cast<std::uint64_t>(std::max(slots, 2)) * 64 * kMiB) {
    worsen(shm, Verdict::warn, "give it 64 MiB for each rank (docker run --shm-size=1g)");
  }

  auto& disk = add("disk", displayable(facts.run_dir, 200) + ": " +
                               (facts.run_dir_error.empty() ? bytes_text(facts.run_dir_free) + " free"
                                                            : displayable(facts.run_dir_error, 200)));
  if (!facts.run_dir_error.empty()) {
    worsen(disk, Verdict::fail, "choose another --run-dir");
  } else if (facts.run_dir_free < 64 * kMiB) {
    worsen(disk, Verdict::fail, "make room, or choose another --run-dir");
  } else if (facts.run_dir_free < kGiB) {
    worsen(disk, Verdict::warn, "checkpoints need room: a model's parameters about three times each");
  }

  auto& addresses = add("addresses", facts.addresses.empty() ? "none" : displayable(facts.addresses, 300));
  if (!contains("," + facts.addresses, " 127.") && !contains(facts.addresses, " ::1")) {
    worsen(addresses, Verdict::fail, "bring the loopback interface up (ip link set lo up)");
  } else if (hosts > 1 && !has_other_than_loopback(facts.addresses)) {
    worsen(addresses, Verdict::fail, "connect this host to the others: it has a loopback address only");
  }

  const auto ports =
      facts.last_port >= facts.first_port && facts.last_port != 0 ? facts.last_port - facts.first_port + 1 : 0;
  auto& range = add("ports", std::to_string(ports) + " for outgoing and unnamed sockets, " +
                                 std::to_string(facts.first_port) + " to " + std::to_string(facts.last_port));
  if (ports < 1000) worsen(range, Verdict::warn, "widen net.ipv4.ip_local_port_range");

  if (!facts.gpus.empty()) {
    const auto count = std::count(facts.gpus.begin(), facts.gpus.end(), ';') + 1;
    const auto nodes = numa_nodes_of(facts.gpus);
    const auto hint =
        "; on " + std::to_string(nodes) + " NUMA nodes, and --bind_cpus node keeps each rank near its GPU";
    auto& gpus = add("gpus", std::to_string(count) + ": " + displayable(facts.gpus, 1000) + (nodes > 1 ? hint : ""));
    if (count < slots)
      worsen(gpus, Verdict::warn,
             "each rank takes one GPU: give the host as many slots as GPUs, or train with --device cpu");
  }
  return findings;
}

Finding judge_build(const std::string& host, const HostFacts& facts, const HostFacts& ours) {
  auto result = finding(host, "build", "the same as here");
  if (facts.version != ours.version || facts.build_id != ours.build_id) {
    result.found = "troupe " + displayable(facts.version) + ", build " + displayable(facts.build_id, 12) + "; here " +
                   ours.version + ", build " + displayable(ours.build_id, 12);
    worsen(result, Verdict::fail, "copy the same build to every host");
  } else if (!ours.gpus.empty() &&
             facts.gpus.substr(0, facts.gpus.find(',')) != ours.gpus.substr(0, ours.gpus.find(','))) {
    result.found = "the same as here, with other GPUs: " + displayable(facts.gpus.empty() ? "none" : facts.gpus, 100);
    worsen(result, Verdict::warn, "the slowest GPU sets the pace of every step; one kind in a job is best");
  }
  return result;
}

Finding judge_clock(const std::string& host, std::chrono::nanoseconds ahead, std::chrono::nanoseconds round_trip) {
  const auto unsure = round_trip / 2;
  auto result = finding(
      host, "clock", time_text(ahead) + (ahead < 0ns ? " behind" : " ahead") + " (known to " + time_text(unsure) + ")");
  const auto surely = std::chrono::abs(ahead) - unsure;
  if (surely > 60s) {
    worsen(result, Verdict::fail,
           "set the clock (an NTP client): certificates would not be valid yet, or would have expired");
  } else if (surely > 500ms) {
    worsen(result, Verdict::warn, "set the clock (an NTP client): logs of two hosts would not compare");
  }
  return result;
}

Finding judge_name(const std::string& host, const Host& name, const std::vector<std::string>& addresses,
                   const std::string& why, bool itself, bool alone) {
  std::string list;
  for (const auto& address : addresses) list += (list.empty() ? "" : ", ") + displayable(address);
  auto result = finding(host, "name", displayable(name.address) + " is " + list);
  const auto remedy = "write address=IP for " + name.name + " in the host list, or correct " +
                      (itself ? "its" : "the host's") + " /etc/hosts";
  const bool loopback = std::any_of(addresses.begin(), addresses.end(), is_loopback);
  if (addresses.empty()) {
    result.found = displayable(name.address) + " has no address here: " + displayable(why);
    worsen(result, Verdict::fail, remedy);
  } else if (loopback && !alone) {
    result.found += itself ? ": other hosts cannot reach what it opens there" : ": the host would connect to itself";
    worsen(result, Verdict::fail, remedy);
  } else if (addresses.size() > 1) {
    worsen(result, Verdict::warn,
           "the first is taken; write address=IP for " + name.name + " in the host list to choose");
  }
  return result;
}

Finding judge_ssh_failure(const Host& host, const std::string& errors, int exit_code,
                          const std::string& troupe_program) {
  const auto said = displayable(last_line(errors), 200);
  Finding result{
      host.name, "ssh", Verdict::fail, said.empty() ? "it ended with " + std::to_string(exit_code) : said, {}};
  const auto target = (host.user.empty() ? "" : host.user + "@") + host.name;
  if (exit_code != 255) {  // ssh got through; what it started did not
    result.check = "troupe";
    result.found = "cannot run " + displayable(troupe_program, 200) + " there: " + result.found;
    result.remedy = "copy the same build to the same path on every host, or name its path with --troupe";
  } else if (contains(errors, "Host key verification failed") ||
             contains(errors, "REMOTE HOST IDENTIFICATION HAS CHANGED")) {
    result.remedy = "check the host's key once by hand: ssh " + target;
  } else if (contains(errors, "Permission denied")) {
    result.remedy = "a login without a password is needed: ssh-copy-id " + target + ", or user=U in the host list";
  } else if (contains(errors, "Could not resolve")) {
    result.remedy = "correct the name, or write address=IP for it in the host list";
  } else if (contains(errors, "refused")) {
    result.remedy = "start sshd there, or write port=P in the host list";
  } else if (contains(errors, "timed out") || contains(errors, "No route") || contains(errors, "unreachable")) {
    result.remedy = "start the host, or open the firewall in between";
  } else {
    result.remedy = "try by hand: ssh -o BatchMode=yes " + target + " true";
  }
  return result;
}

std::vector<std::pair<int, int>> links_to_measure(int hosts) {
  std::vector<std::pair<int, int>> links;
  constexpr int kFew = 8;
  for (int from = 0; from < hosts; ++from) {
    for (int to = 0; to < hosts; ++to) {
      const int distance = (to - from + hosts) % hosts;
      if (distance != 0 && (hosts <= kFew || distance == 1 || distance == hosts - 1)) links.emplace_back(from, to);
    }
  }
  return links;
}

std::vector<Finding> judge_links(const std::vector<Host>& hosts, const std::vector<Link>& links) {
  std::vector<double> rates;
  rates.reserve(links.size());
  for (const auto& link : links) rates.push_back(link.measure.bytes_per_second);
  std::sort(rates.begin(), rates.end());
  std::vector<Finding> findings;
  for (const auto& link : links) {
    const auto name =
        hosts[static_cast<std::size_t>(link.from)].name + " -> " + hosts[static_cast<std::size_t>(link.to)].name;
    auto& result = findings.emplace_back(finding(
        name, "link", rate_text(link.measure.bytes_per_second) + ", round trip " + time_text(link.measure.round_trip)));
    if (link.measure.bytes_per_second < rates[rates.size() / 2] / 4) {
      worsen(result, Verdict::warn,
             "the median link has " + rate_text(rates[rates.size() / 2]) +
                 ": look at this one's cable, switch port and address");
    } else if (link.measure.bytes_per_second < 100e6 / 8) {
      worsen(result, Verdict::warn, "gradients will be exchanged slowly: is this the right network (address=A)?");
    }
  }
  return findings;
}

std::string to_line(const Finding& finding) {
  const auto padded = [](std::string text, std::size_t columns) {
    if (text.size() < columns) text.resize(columns, ' ');
    return text + "  ";
  };
  const auto columns = padded(to_string(finding.verdict), 4) + padded(finding.host.empty() ? "here" : finding.host, 8) +
                       padded(finding.check, 9);
  return columns + finding.found + (finding.remedy.empty() ? "" : "; " + finding.remedy);
}

std::string to_json(const std::vector<Finding>& findings) {
  const auto shown = [](const std::string& text) { return displayable(text, text.size()); };
  int count[3] = {};
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& each : findings) {
    ++count[static_cast<int>(each.verdict)];
    list.push_back({{"host", shown(each.host)},
                    {"check", shown(each.check)},
                    {"verdict", to_string(each.verdict)},
                    {"found", shown(each.found)},
                    {"remedy", shown(each.remedy)}});
  }
  const nlohmann::ordered_json json{{"findings", list}, {"ok", count[0]}, {"warn", count[1]}, {"fail", count[2]}};
  return json.dump(2) + "\n";
}

int exit_code(const std::vector<Finding>& findings) noexcept {
  const bool failed =
      std::any_of(findings.begin(), findings.end(), [](const Finding& each) { return each.verdict == Verdict::fail; });
  return failed ? exit_code(ErrorCode::unavailable) : 0;
}

}  // namespace troupe
