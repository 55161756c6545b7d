#include "launch/doctor/doctor.hpp"

#include <sys/stat.h>

#include <charconv>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

#include "launch/config/command_flags.hpp"
#include "launch/doctor/doctor_agent.hpp"
#include "launch/hosts/ssh_command.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/terminal.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

const char* const kDoctorHelp =
    "usage: troupe doctor [--hosts FILE|a:8,b:8] [FLAGS]\n"
    "\n"
    "Looks for problems that would keep a job from running, on this machine and on every host of the list. It checks "
    "limits, memory, disk, clocks, names, ssh, equal builds, and the speed of every link. It prints one line for each "
    "finding.\n"
    "\n"
    "  --hosts FILE|LIST    a host file, or the list itself\n"
    "  --run-dir DIR        where the job will write (default: runs)\n"
    "  --ssh-config FILE    a configuration file for ssh (ssh -F)\n"
    "  --troupe PATH        the troupe command on the hosts (default: its path on this machine)\n"
    "  --no-links           do not measure links\n"
    "  --no-ranks           do not start a rank on every host (collectives, gradients)\n"
    "  --json               print one JSON object instead of lines\n"
    "\n"
    "  --serve ADDRESS      measure one link by hand: print `PORT TOKEN`, and answer until the input ends\n"
    "  --measure ADDRESS:PORT   the other end: read the token from the input, and print the speed of the link\n"
    "\n"
    "exit code: 0, or 69 if a finding is a failure\n"
    "example: troupe doctor --hosts node1:8,node2:8\n";

namespace {

using namespace std::chrono_literals;

struct Request {
  std::string hosts, run_dir = "runs", ssh_config, troupe, serve, measure;
  bool no_links = false, no_ranks = false, json = false, agent = false, help = false;
};

Request read_request(const std::vector<std::string>& words) {
  Request request;
  const auto others = read_words(words,
                                 {{"--hosts", filled(request.hosts)},
                                  {"--run-dir", filled(request.run_dir)},
                                  {"--ssh-config", filled(request.ssh_config)},
                                  {"--troupe", filled(request.troupe)},
                                  {"--serve", filled(request.serve)},
                                  {"--measure", filled(request.measure)},
                                  {"--no-links", &request.no_links},
                                  {"--no-ranks", &request.no_ranks},
                                  {"--json", &request.json},
                                  {"--agent", &request.agent},
                                  {"--help", &request.help},
                                  {"-h", &request.help}},
                                 "troupe doctor");
  if (!others.empty())
    throw Error(ErrorCode::usage, "troupe doctor", "'" + displayable(others[0]) + "' is not a flag",
                "see troupe doctor --help");
  return request;
}

// A file, unless it can only be a list.
std::vector<Host> read_hosts(const std::string& text) {
  struct stat status {};
  const bool list = ::stat(text.c_str(), &status) != 0 && text.find('/') == std::string::npos &&
                    text.find_first_of(":,") != std::string::npos;
  return list ? parse_host_flag(text) : read_host_file(text);
}

class Doctor {
 public:
  Doctor(const Request& request, const DoctorOptions& options) : request_(request), options_(options) {
    if (!request.hosts.empty()) hosts_ = read_hosts(request.hosts);
    alone_ = hosts_.size() < 2;
    if (!alone_) {
      alone_ = true;
      for (const auto& host : hosts_) alone_ = alone_ && is_loopback(host.address);
    }
  }

  int run() {
    ours_ = gather_host_facts(options_.version, request_.run_dir);
    add(judge_host({}, ours_, 1, alone_ ? 1 : static_cast<int>(hosts_.size())));
    constexpr std::size_t kAtOnce = 16;  // logins that are opened side by side
    sessions_.resize(hosts_.size());
    for (std::size_t begin = 0; begin < hosts_.size(); begin += kAtOnce) {
      const auto end = std::min(hosts_.size(), begin + kAtOnce);
      for (auto i = begin; i < end; ++i) sessions_[i] = std::make_unique<DoctorSession>(remote_command(hosts_[i]));
      for (auto i = begin; i < end; ++i) look_at(i);
    }
    if (!hosts_.empty()) {
      for (const auto& [on, of] : names_to_resolve()) look_at_name(on, of);
      if (!request_.no_links) look_at_links();
    }
    if (exit_code(findings_) == 0 && !request_.no_ranks) {
      for (const auto& check : options_.more_checks) add(check(hosts_, {request_.ssh_config, request_.troupe}));
    }
    if (request_.json) std::cout << to_json(findings_) << std::flush;
    return exit_code(findings_);
  }

 private:
  void add(const std::vector<Finding>& findings) {
    for (const auto& finding : findings) add(finding);
  }
  void add(const Finding& finding) {
    findings_.push_back(finding);
    if (!request_.json) std::cout << to_line(finding) << std::endl;  // as it is found: some take seconds
  }
  void fail(const std::string& host, const char* check, const Error& error) {
    add({host, check, Verdict::fail,
         error.report().operation + (error.report().operation.empty() ? "" : ": ") + error.report().cause,
         error.report().remedy});
  }

  std::string remote_program() const { return request_.troupe.empty() ? options_.troupe_program : request_.troupe; }
  std::vector<std::string> remote_command(const Host& host) const {
    if (is_this_machine(host)) return {options_.troupe_program, "doctor", "--agent"};  // as launch starts its agent
    SshOptions ssh;
    if (!request_.ssh_config.empty()) ssh.extra_arguments = {"-F", request_.ssh_config};
    return ssh_command(host, {remote_program(), "doctor", "--agent"}, ssh);
  }

  void look_at(std::size_t i) {
    const auto& host = hosts_[i];
    try {
      try {
        sessions_[i]->greet(30s);
      } catch (const Error&) {
        const auto [status, errors] = sessions_[i]->ending();
        add(judge_ssh_failure(host, errors, status, remote_program()));
        sessions_[i].reset();
        return;
      }
      const auto facts = sessions_[i]->facts(ours_.run_dir);
      if (!is_this_machine(host)) add({host.name, "ssh", Verdict::ok, "reached without a password", {}});
      add(judge_build(host.name, facts, ours_));
      add(judge_host(host.name, facts, host.slots, alone_ ? 1 : static_cast<int>(hosts_.size())));
      const auto [ahead, round_trip] = sessions_[i]->clock();
      add(judge_clock(host.name, ahead, round_trip));
    } catch (const Error& error) {
      fail(host.name, "agent", error);
      sessions_[i].reset();
    }
  }

  // Few hosts resolve all names, many their own and their neighbours'.
  std::vector<std::pair<int, int>> names_to_resolve() const {
    auto pairs = links_to_measure(static_cast<int>(hosts_.size()));
    for (int i = 0; i < static_cast<int>(hosts_.size()); ++i) pairs.emplace_back(i, i);
    return pairs;
  }

  void look_at_name(int on, int of) {
    auto& session = sessions_[static_cast<std::size_t>(on)];
    if (!session) return;
    const auto &host = hosts_[static_cast<std::size_t>(on)], &name = hosts_[static_cast<std::size_t>(of)];
    try {
      std::string why;
      const auto addresses = session->resolve(name.address, why);
      add(judge_name(host.name, name, addresses, why, on == of, alone_));
    } catch (const Error& error) {
      fail(host.name, "name", error);
      session.reset();
    }
  }

  void look_at_links() {
    std::vector<Link> links;
    for (const auto& [from, to] : links_to_measure(static_cast<int>(hosts_.size()))) {
      auto &source = sessions_[static_cast<std::size_t>(from)], &target = sessions_[static_cast<std::size_t>(to)];
      if (!source || !target) continue;
      try {
        const auto& address = hosts_[static_cast<std::size_t>(to)].address;
        links.push_back({from, to, source->measure(address, target->serve(address), 300ms)});
      } catch (const Error& error) {
        fail(hosts_[static_cast<std::size_t>(from)].name + " -> " + hosts_[static_cast<std::size_t>(to)].name, "link",
             error);
      }
    }
    add(judge_links(hosts_, links));
  }

  const Request& request_;
  const DoctorOptions& options_;
  std::vector<Host> hosts_;
  bool alone_ = true;  // no host has to reach another machine
  HostFacts ours_;
  std::vector<std::unique_ptr<DoctorSession>> sessions_;
  std::vector<Finding> findings_;
};

int serve_by_hand(const std::string& address) {
  const TcpProbeServer server(address);
  std::cout << server.port() << ' ' << server.token() << std::endl;
  for (std::string line; std::getline(std::cin, line);) continue;
  return 0;
}

int measure_by_hand(const std::string& target) {
  const auto colon = target.rfind(':');
  std::uint16_t port = 0;
  const auto* end = target.data() + target.size();
  if (colon == std::string::npos || std::from_chars(target.data() + colon + 1, end, port).ptr != end || port == 0)
    throw Error(ErrorCode::usage, "--measure", "'" + displayable(target) + "' is not ADDRESS:PORT",
                "give what --serve printed");
  auto address = target.substr(0, colon);
  if (address.size() > 2 && address.front() == '[' && address.back() == ']')
    address = address.substr(1, address.size() - 2);
  std::string token;
  std::cin >> token;
  const auto link = measure_link(address, port, token, 1s);
  std::printf("%.1f Mbit/s, round trip %.1f us\n", link.bytes_per_second * 8e-6,
              static_cast<double>(link.round_trip.count()) * 1e-3);
  return 0;
}

}  // namespace

int doctor_command(const std::vector<std::string>& words, const DoctorOptions& options) {
  const auto request = read_request(words);
  if (request.help) return print_help(kDoctorHelp), 0;
  if (request.agent) return serve_doctor(std::cin, std::cout, options.version), 0;
  if (!request.serve.empty()) return serve_by_hand(request.serve);
  if (!request.measure.empty()) return measure_by_hand(request.measure);
  return Doctor(request, options).run();
}

}  // namespace troupe
