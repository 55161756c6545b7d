#include "launch/debug/debug_command.hpp"

#include <poll.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include "launch/config/command_flags.hpp"
#include "launch/debug/debug_judgement.hpp"
#include "launch/debug/inspection_request.hpp"
#include "launch/process/child_process.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/output_lines.hpp"
#include "launch/process/scratch_folder.hpp"
#include "launch/process/stop_signals.hpp"
#include "launch/process/terminal.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

const char* const kDebugHelp =
    "usage: troupe debug [FLAGS] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Runs a program several times, for some seconds each, and makes six checks. It checks that one rank learns, the "
    "hosts, the group of ranks, and the tensors of all ranks (devices, types, equality). It compares the gradients of "
    "N ranks with those of one rank for the same samples. It measures the share of communication. There is no run "
    "folder, and no checkpoint is written. Code after the training loop is not run.\n"
    "\n"
    "  --nproc N            ranks on this machine, compared with one rank (default 2)\n"
    "  --hosts FILE|LIST    also check these hosts, as troupe doctor does\n"
    "  --ssh-config FILE    a configuration file for ssh (ssh -F)\n"
    "  --json               print one JSON object instead of lines\n"
    "  --timeout S          seconds for one run, with its start (default 90)\n"
    "  --keep DIR           keep the ranks' records, in a new folder\n"
    "\n"
    "exit code: 0, or 1 if a check failed, or 130 if it was stopped\n"
    "example: troupe debug ./train --lr 0.05\n";

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kToEnd = 5s;  // from SIGTERM to SIGKILL

// What another launcher may have set around this command: the program would be a rank of that job.
constexpr const char* kPlaces[] = {
    "RANK",        "WORLD_SIZE",  "LOCAL_RANK",          "LOCAL_WORLD_SIZE",   "GROUP_RANK",
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TROUPE_COORDINATOR", "TROUPE_JOB_ID"};

volatile std::sig_atomic_t stopped_by = 0;
extern "C" void note_signal(int number) { stopped_by = number; }

void throw_if_stopped() {
  if (stopped_by != 0) throw Error(ErrorCode::interrupted, "troupe debug", "it was asked to stop");
}

struct Request {
  std::string hosts, ssh_config, keep;
  bool json = false, help = false;
  int ranks = 2, patience = 90;
  std::vector<std::string> program;
};

Request read_request(const std::vector<std::string>& words) {
  Request request;
  const auto first = read_flags(words,
                                {{"--nproc", number_between(request.ranks, 2, 64)},
                                 {"--timeout", number_between(request.patience, 1, 86'400)},
                                 {"--hosts", filled(request.hosts)},
                                 {"--ssh-config", filled(request.ssh_config)},
                                 {"--keep", filled(request.keep)},
                                 {"--json", &request.json},
                                 {"--help", &request.help},
                                 {"-h", &request.help}},
                                "troupe debug");
  if (request.help) return request;
  if (!request.keep.empty()) {
    request.keep = std::filesystem::absolute(request.keep);  // the program may change its folder
    std::error_code missing;
    if (!std::filesystem::is_empty(request.keep, missing) && !missing)
      throw Error(ErrorCode::usage, "--keep", displayable(request.keep) + " is not empty", "name a new folder");
  }
  request.program.assign(words.begin() + static_cast<std::ptrdiff_t>(first), words.end());
  if (request.program.empty())
    throw Error(ErrorCode::usage, "troupe debug", "no program was named", "for example troupe debug ./train");
  request.program[0] = find_program(request.program[0]);
  return request;
}

// A command that is run to its end, in another process group. It does not outlive this object.
class Command {
 public:
  Command(const std::vector<std::string>& words, const std::map<std::string, std::string>& environment)
      : child_({words, environment}) {}
  ~Command() {
    if (!child_.ended()) child_.signal(SIGTERM);
    for (const auto end = Clock::now() + kToEnd; !child_.poll_exit() && Clock::now() < end;) look(50);
    child_.signal(SIGKILL);
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  /// Its wait status; nothing: it did not end in time. Throws Error(interrupted).
  std::optional<int> wait(Clock::time_point deadline) {
    for (;;) {
      throw_if_stopped();
      const auto status = child_.poll_exit();
      look(status ? 0 : 100);
      if (status) return status;
      if (Clock::now() >= deadline) return std::nullopt;
    }
  }
  const std::string& output() const noexcept { return output_; }
  /// What it said first behind `error: `, or a rank of it.
  const std::string& error() const noexcept { return error_; }
  /// What one of our commands said last of itself.
  const std::string& last_word() const noexcept { return ours_; }

 private:
  void look(int milliseconds) {
    pollfd files[] = {{child_.stdout_fd(), POLLIN, 0}, {child_.stderr_fd(), POLLIN, 0}};
    if (milliseconds > 0) ::poll(files, 2, milliseconds);
    if (child_.stdout_fd() >= 0 &&
        !out_.drain(child_.stdout_fd(), [this](std::string_view line, bool) { take(line, true); }))
      child_.close_stdout();
    if (child_.stderr_fd() >= 0 &&
        !err_.drain(child_.stderr_fd(), [this](std::string_view line, bool) { take(line, false); }))
      child_.close_stderr();
  }
  void take(std::string_view line, bool output) {
    if (output && output_.size() < kKept) output_ += std::string(line) + "\n";
    if (line.starts_with("[rank ")) line.remove_prefix(std::min(line.find("] ") + 2, line.size()));
    constexpr std::string_view kMark = "error: ";
    if (error_.empty() && line.starts_with(kMark)) error_ = line.substr(kMark.size());
    if (line.starts_with("troupe: ")) ours_ = line.substr(8);
  }

  static constexpr std::size_t kKept = 1 << 20;
  ChildProcess child_;
  OutputLines out_, err_;
  std::string output_, error_, ours_;
};

class Debug {
 public:
  Debug(const Request& request, const std::string& troupe) : request_(request), troupe_(troupe) {}

  DebugRuns run() {
    DebugRuns runs;
    runs.cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    runs.alone = run_program("one rank", 1, {});
    runs.hosts = look_at_hosts(!runs.alone.failed());
    if (runs.alone.failed() || runs.alone.records.empty()) return runs;
    const int ranks = request_.ranks;
    runs.together = run_program(std::to_string(ranks) + " ranks", ranks, {});
    if (runs.together.failed()) return runs;
    runs.gradient_alone = run_program("the gradient of one rank", 1, {.gradients = true});
    runs.gradient_together =
        run_program("the gradient of " + std::to_string(ranks) + " ranks", ranks, {.gradients = true});
    if (gradient_difference(runs.gradient_alone, runs.gradient_together))
      runs.other_draw = run_program("other random numbers", 1, {.gradients = true, .draw = 1});
    runs.wider.push_back(run_program(std::to_string(2 * ranks) + " ranks", 2 * ranks, {}));
    return runs;
  }

 private:
  void say(const std::string& what) {
    if (!request_.json) std::fprintf(stderr, "troupe debug: %s ...\n", what.c_str());
  }

  std::vector<std::string> command(int ranks, const std::string& folder) const {
    if (ranks == 1) return request_.program;
    std::vector<std::string> words{troupe_,     "launch",       "--no-recovery", "--nproc", std::to_string(ranks),
                                   "--run-dir", folder + "/run"};
    words.insert(words.end(), request_.program.begin(), request_.program.end());
    // The launcher reads these ahead.
    words.insert(words.end(),
                 {"--run_dir", "", "--checkpoint_dir", "", "--resume", "", "--save_every", "-1", "--profile", "off"});
    return words;
  }

  DebugRun run_program(const std::string& what, int ranks, InspectionRequest inspection) {
    throw_if_stopped();
    say(what);
    inspection.folder = (request_.keep.empty() ? scratch_.path() : request_.keep) + "/" + std::to_string(++made_);
    inspection.ranks = ranks;
    std::error_code failure;
    std::filesystem::create_directories(inspection.folder, failure);
    if (failure)
      throw Error(ErrorCode::io, displayable(inspection.folder, 200), failure.message(), "name another folder: --keep");
    DebugRun run;
    run.ranks = ranks;
    {
      Command program(command(ranks, inspection.folder), {{kInspectVariable, inspection.to_text()}});
      const auto status = program.wait(Clock::now() + std::chrono::seconds(request_.patience));
      run.timed_out = !status;
      if (status) {
        run.exit_code = exit_code_of_wait_status(*status);
        run.ending = describe_wait_status(*status);
      }
      run.error = program.error();
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const auto path = inspection.folder + "/rank" + std::to_string(rank) + ".json";
      if (std::filesystem::exists(path, failure)) run.records.push_back(InspectionRecord::read(path));
    }
    return run;
  }

  std::vector<HostFinding> look_at_hosts(bool with_ranks) {
    throw_if_stopped();
    say("the hosts");
    std::vector<std::string> words{troupe_, "doctor", "--json", "--run-dir", scratch_ / "runs"};
    if (!request_.hosts.empty()) words.insert(words.end(), {"--hosts", request_.hosts});
    if (!request_.ssh_config.empty()) words.insert(words.end(), {"--ssh-config", request_.ssh_config});
    if (!with_ranks) words.emplace_back("--no-ranks");
    // Its folder goes with ours, even if it is killed.
    Command doctor(words, {{"TMPDIR", scratch_.path()}});
    doctor.wait(Clock::now() + std::chrono::seconds(request_.patience));
    std::vector<HostFinding> findings;
    try {
      const auto json = nlohmann::json::parse(doctor.output());
      for (const auto& each : json.at("findings"))
        findings.push_back(
            {each.at("host"), each.at("check"), each.at("verdict"), each.at("found"), each.at("remedy")});
    } catch (const nlohmann::json::exception&) {
      const auto& error = doctor.last_word();
      findings.push_back({{},
                          "doctor",
                          "fail",
                          error.empty() ? "troupe doctor printed nothing" : error,
                          "run troupe doctor by itself"});
    }
    return findings;
  }

  const Request& request_;
  const std::string troupe_;
  const ScratchFolder scratch_{"troupe-debug"};
  int made_ = 0;
};

}  // namespace

int debug_command(const std::vector<std::string>& words, const std::string& troupe_program) {
  const auto request = read_request(words);
  if (request.help) return print_help(kDebugHelp), 0;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(number)) std::signal(number, note_signal);
  }
  for (const char* name : kPlaces) ::unsetenv(name);
  const auto findings = judge(Debug(request, troupe_program).run());
  std::cout << (request.json ? to_json(findings) : to_table(findings)) << std::flush;
  return exit_code(findings);
}

}  // namespace troupe
