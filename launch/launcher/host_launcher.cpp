#include "launch/launcher/host_launcher.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "launch/hosts/host_facts.hpp"
#include "launch/hosts/ssh_command.hpp"
#include "launch/launcher/coordinator_child.hpp"
#include "launch/launcher/first_words.hpp"
#include "launch/launcher/process_words.hpp"
#include "launch/network/actor_system.hpp"
#include "launch/network/agent_link.hpp"
#include "launch/network/job_keys.hpp"
#include "launch/process/child_process.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/local_address.hpp"
#include "launch/process/output_lines.hpp"
#include "launch/process/stop_signals.hpp"
#include "launch/process/terminal.hpp"
#include "launch/run/run_socket.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kAgentsEnd = 8s;  // after the job's end; an agent kills its ranks after 5 s

struct Agent {
  Host host;
  std::vector<int> slots, spares;
  std::unique_ptr<ChildProcess> child;
  OutputLines out, err;
  std::string last_line;
};

class HostLauncher {
 public:
  HostLauncher(const LauncherOptions& options, RunOfJob run, RunLock& lock, int starts_over)
      : options_(options), lock_(lock), starts_over_(starts_over), run_(std::move(run)) {}

  LaunchOutcome run() {
    place_ranks();
    address_ = options_.address.empty() ? default_address() : ipv4_address_of(options_.address);
    if (!options_.insecure) key_maker_.emplace();  // other users of this machine reach its loopback interface, too
    if (!is_loopback(address_)) {
      std::fprintf(stderr, "troupe: listening on %s for %zu hosts; %s: use a private network\n", address_.c_str(),
                   agents_.size(),
                   options_.insecure
                       ? "their messages are neither encrypted nor authenticated"
                       : "they authenticate by the job's keys; gradients and other data are not encrypted");
    }
    std::optional<JobKeys> keys;
    if (key_maker_) keys = key_maker_->keys_for("launcher");
    (void)find_program(options_.command[0]);
    lock_.take();
    try {
      socket_.emplace(run_.folder);
    } catch (const Error& error) {  // the name is anybody's to take
      std::fprintf(stderr, "troupe: warning: troupe drain will not reach this job: %s\n", error.what());
    }
    if (options_.on_run_folder) options_.on_run_folder(run_.folder);
    const CoordinatorProcessOptions process{.run = run_,
                                            .world_size = world_size_,
                                            .recovery = options_.recovery,
                                            .chaos = options_.chaos,
                                            .address = address_,
                                            .insecure = options_.insecure};
    coordinator_.emplace(CoordinatorChild::Options{options_.troupe_program, process, keys, starts_over_});
    AgentLink::Options link;
    link.job_id = run_.job_id;
    link.host = kLauncher;
    link.coordinator_host = address_;
    link.coordinator_port = static_cast<std::uint16_t>(coordinator_->port());
    link.keys = keys;
    link_.emplace(link, std::vector<ProcessId>{});
    for (std::size_t i = 0; i < agents_.size(); ++i) start(agents_[i], static_cast<int>(i));
    while (!done()) {
      step();
      if (options_.on_output) options_.on_output();
    }
    for (auto& agent : agents_) drain(agent);
    clear_bar();
    coordinator_->finish([] {});
    const int code = verdict();
    return {code, lost_state(over_, stop_signal_)};
  }

 private:
  void place_ranks() {
    for (const auto& host : options_.hosts) {
      if (!is_this_machine(host) && host.address.find(':') != std::string::npos) (void)ipv4_address_of(host.address);
    }
    for (const auto& host : options_.hosts) agents_.push_back({host, {}, {}, nullptr, {}, {}, {}});
    const auto places = assign_ranks(options_.hosts);
    world_size_ = static_cast<int>(places.size());
    for (int r = 0; r < world_size_; ++r)
      agents_[static_cast<std::size_t>(places[static_cast<std::size_t>(r)].host)].slots.push_back(r);
    // The last hosts first: spares are of use when the host of a dead rank is another.
    for (int s = 0; s < options_.spares; ++s)
      agents_[agents_.size() - 1 - static_cast<std::size_t>(s) % agents_.size()].spares.push_back(world_size_ + s);
  }

  std::string default_address() const {
    for (const auto& agent : agents_) {
      if (!is_this_machine(agent.host)) return local_address_towards(agent.host.address, 22);
    }
    return "127.0.0.1";
  }

  void start(Agent& agent, int number) {
    const bool here = is_this_machine(agent.host);
    const auto program = find_program(options_.command[0]);
    RankProcessOptions ranks;
    ranks.run = run_;
    ranks.host = agent.host.name;
    ranks.coordinator_host = address_;
    ranks.coordinator_port = coordinator_->port();
    // Rank 0's host, where a program of torch.distributed opens its store.
    ranks.master_addr = is_this_machine(agents_[0].host) ? address_ : agents_[0].host.address;
    ranks.world_size = world_size_;
    ranks.node_rank = number;
    ranks.nodes = static_cast<int>(agents_.size());
    ranks.slots = agent.slots;
    ranks.spares = agent.spares;
    ranks.recovery = options_.recovery.enabled;
    ranks.keys_on_stdin = key_maker_.has_value();
    ranks.starts_over = starts_over_;
    if (terminal_) ranks.bar_columns = static_cast<int>(terminal_columns(1));
    std::vector<std::string> words{
        here || options_.remote_troupe.empty() ? options_.troupe_program : options_.remote_troupe, "node",
        word_of(ranks), std::filesystem::absolute(program).string()};
    words.insert(words.end(), options_.command.begin() + 1, options_.command.end());
    ChildProcess::Options child;
    child.keep_stdin_open = true;
    if (here) {
      child.arguments = words;
    } else {
      SshOptions ssh;
      ssh.extra_arguments = options_.ssh_arguments;
      ssh.working_directory = std::filesystem::current_path().string();
      std::map<std::string, std::string> all;
      for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text(*entry);
        all[text.substr(0, text.find('='))] = text.substr(std::min(text.size(), text.find('=') + 1));
      }
      ssh.environment = environment_of_host(all);
      child.arguments = ssh_command(agent.host, words, ssh);
      child.arguments[0] = find_program(child.arguments[0]);
    }
    agent.child = std::make_unique<ChildProcess>(child);
    if (key_maker_) agent.child->write_stdin(key_maker_->keys_for(agent.host.name).framed());
  }

  void step() {
    std::vector<pollfd> fds{
        {signals_.fd(), POLLIN, 0}, {link_->fd(), POLLIN, 0}, {socket_ ? socket_->fd() : -1, POLLIN, 0}};
    coordinator_->add_fds(fds);
    for (const auto& agent : agents_) {
      if (agent.child->stdout_fd() >= 0) fds.push_back({agent.child->stdout_fd(), POLLIN, 0});
      if (agent.child->stderr_fd() >= 0) fds.push_back({agent.child->stderr_fd(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), 50);
    if (fds[2].revents != 0) socket_->step([this](const std::string& line) { return answer(line); });
    if (const auto request = signals_.take(); request.signal != 0) {
      clear_bar();
      request.at_once ? say_ended_at_once(request.signal) : say_stopping(request);
      for (auto& agent : agents_)
        request.at_once ? agent.child->close_stdin() : agent.child->write_stdin(request.signal == SIGINT ? "I" : "T");
      if (!request.at_once) stop_signal_ = request.signal;
    }
    coordinator_->step([this] { clear_bar(); });
    for (const auto& command : link_->take()) {
      if (const auto* over = std::get_if<JobOver>(&command)) {
        over_ = *over;
        over_at_ = Clock::now();
      }
    }
    for (auto& agent : agents_) {
      drain(agent);
      if (agent.child->ended()) continue;
      const auto status = agent.child->poll_exit();
      if (!status) continue;
      drain(agent);
      ended(agent, *status);
    }
    if (over_ && Clock::now() > over_at_ + kAgentsEnd) {
      for (auto& agent : agents_) agent.child->close_stdin();  // they end with their ranks
    }
  }

  // To `troupe drain`: "ok " and what happens, or why nothing does.
  std::string answer(const std::string& line) {
    const std::string drain = "drain ";
    if (!line.starts_with(drain)) return "this launcher does not know '" + displayable(line) + "'";
    const auto name = line.substr(drain.size());
    std::string known;
    for (auto& agent : agents_) {
      known += (known.empty() ? "" : ", ") + agent.host.name;
      if (agent.host.name != name) continue;
      if (agent.child->ended()) return "this host has left the job already";
      if (!options_.recovery.enabled) return "the job was started with --no-recovery, and can't go on without a host";
      agent.child->write_stdin("L");
      return "ok the ranks of " + name + " leave after their step";
    }
    return "the job has no such host: it has " + known;
  }

  void ended(Agent& agent, int status) {
    const int code = exit_code_of_wait_status(status);
    if (code != 0 && first_bad_ == nullptr) first_bad_ = &agent, bad_code_ = code;
    if (over_ || stop_signal_ != 0 || code == 0) return;
    clear_bar();
    std::fprintf(stderr, "troupe: host %s: its agent ended (%s)%s%s\n", agent.host.name.c_str(),
                 describe_wait_status(status).c_str(), agent.last_line.empty() ? "" : ": ", agent.last_line.c_str());
    // Where the ranks were never started the coordinator must not wait for them.
    for (const int slot : agent.slots) link_->exited({slot, 0}, 69 << 8);
  }

  void drain(Agent& agent) {
    drain(agent, agent.child->stdout_fd(), agent.out, 1);
    drain(agent, agent.child->stderr_fd(), agent.err, 2);
  }
  void drain(Agent& agent, int fd, OutputLines& lines, int target) {
    if (fd < 0) return;
    const auto show = [&](std::string_view text, bool overwrite) {
      if (overwrite && terminal_ && target == 1) {  // rank 0's bar, with its marker
        std::fprintf(stdout, "%s%s", kClearLine, tinted(text.substr(0, terminal_columns(1) - 1), 1).c_str());
        std::fflush(stdout);
        bar_shown_ = true;
        return;
      }
      if (const auto label = text.find("] "); text.starts_with('[') && label != std::string_view::npos) {
        if (!first_words_.is_news(text.substr(0, label), text.substr(label + 2))) return;
      }
      clear_bar();
      std::fprintf(target == 1 ? stdout : stderr, "%s\n", tinted(text, target).c_str());
      std::fflush(target == 1 ? stdout : stderr);
      if (target == 2) agent.last_line = text;
    };
    if (!lines.drain(fd, show)) target == 1 ? agent.child->close_stdout() : agent.child->close_stderr();
  }

  void clear_bar() {
    if (!std::exchange(bar_shown_, false)) return;
    std::fputs(kClearLine, stdout);
    std::fflush(stdout);
  }

  bool done() const {
    return std::all_of(agents_.begin(), agents_.end(), [](const Agent& agent) { return agent.child->ended(); });
  }

  int verdict() {
    const auto deadline = Clock::now() + 1s;
    while (!over_ && Clock::now() < deadline) step();
    if (over_ && over_->exit_code == 0) return stop_signal_ == 0 ? 0 : 128 + stop_signal_;
    if (over_) {
      if (stop_signal_ == 0 && over_->exit_code != exit_code(ErrorCode::usage))  // its agent has said why
        std::fprintf(stderr, "troupe: the job ended: %s\n", over_->report.to_string().c_str());
      return stop_signal_ == 0 ? over_->exit_code : 128 + stop_signal_;
    }
    if (stop_signal_ != 0) return 128 + stop_signal_;
    return first_bad_ == nullptr ? 0 : bad_code_ == 255 ? 69 : bad_code_;  // 255 is ssh's own
  }

  const LauncherOptions& options_;
  StopSignals signals_{options_.stop_at};
  RunLock& lock_;
  const int starts_over_;
  const RunOfJob run_;
  std::string address_;
  int world_size_ = 0;
  std::vector<Agent> agents_;
  std::optional<KeyMaker> key_maker_;
  std::optional<CoordinatorChild> coordinator_;
  std::optional<AgentLink> link_;
  std::optional<RunSocket> socket_;
  std::optional<JobOver> over_;
  Clock::time_point over_at_;
  const Agent* first_bad_ = nullptr;
  int bad_code_ = 0;
  int stop_signal_ = 0;
  const bool terminal_ = shows_bars(1);
  bool bar_shown_ = false;
  FirstWords first_words_;
};

}  // namespace

LaunchOutcome launch_on_hosts(const LauncherOptions& options, const RunOfJob& run, RunLock& lock, int starts_over) {
  return HostLauncher(options, run, lock, starts_over).run();
}

}  // namespace troupe
