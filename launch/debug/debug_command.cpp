#include "launch/debug/debug_command.hpp"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
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
#include "launch/process/piped_command.hpp"
#include "launch/process/scratch_folder.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

const char* const kDebugHelp =
    "usage: troupe debug [FLAGS] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Runs your program a few times, for some seconds each, and judges it in six steps: one rank learns; the hosts; the "
    "group of\n"
    "ranks; devices, types and equality of its tensors; the gradients of N ranks against those of one with the same "
    "samples; the\n"
    "share of communication. Nothing of yours is written or resumed. Exit 0, or 1 if a step failed.\n"
    "\n"
    "  --nproc N            ranks on this machine, to be held against one (2)\n"
    "  --hosts FILE|LIST    hosts that troupe doctor looks at, too\n"
    "  --ssh-config FILE    for ssh -F\n"
    "  --json               one JSON object instead of lines\n"
    "  --keep DIR           keeps what the ranks wrote down\n"
    "\n"
    "example: troupe debug ./train --lr 0.05\n";

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = 90s;  // with one run: it takes some seconds as a rule

volatile std::sig_atomic_t stopped_by = 0;
extern "C" void note_signal(int number) { stopped_by = number; }

void throw_if_stopped() {
  if (stopped_by != 0) throw Error(ErrorCode::interrupted, "troupe debug", "it was asked to stop");
}

struct Request {
  std::string nproc, hosts, ssh_config, keep;
  bool json = false, help = false;
  int ranks = 2;
  std::vector<std::string> program;
};

Request read_request(const std::vector<std::string>& words) {
  Request request;
  const auto first = read_flags(words,
                                {{"--nproc", filled(request.nproc)},
                                 {"--hosts", filled(request.hosts)},
                                 {"--ssh-config", filled(request.ssh_config)},
                                 {"--keep", filled(request.keep)},
                                 {"--json", &request.json},
                                 {"--help", &request.help},
                                 {"-h", &request.help}},
                                "troupe debug");
  if (request.help) return request;
  if (!request.nproc.empty()) {
    const auto* end = request.nproc.data() + request.nproc.size();
    if (std::from_chars(request.nproc.data(), end, request.ranks).ptr != end || request.ranks < 2 || request.ranks > 64)
      throw Error(ErrorCode::usage, "--nproc", "'" + displayable(request.nproc) + "' is no whole number from 2 to 64");
  }
  request.program.assign(words.begin() + static_cast<std::ptrdiff_t>(first), words.end());
  if (request.program.empty())
    throw Error(ErrorCode::usage, "troupe debug", "no program was named", "for example troupe debug ./train");
  request.program[0] = find_program(request.program[0]);
  return request;
}

// The first error that a rank said of itself, or a command of ours (`troupe: `); what follows from it comes later.
std::string first_error(const std::string& text, const std::string& mark = "error: ") {
  std::size_t begin = 0;
  while (begin < text.size()) {
    const auto end = std::min(text.find('\n', begin), text.size());
    auto line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("[rank ")) line.erase(0, std::min(line.find("] ") + 2, line.size()));
    if (line.starts_with(mark)) return line.substr(mark.size());
  }
  return {};
}

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
    words.insert(words.end(), {"--run_dir", "", "--checkpoint_dir", "", "--resume", "", "--save_every", "-1"});
    return words;
  }

  DebugRun run_program(const std::string& what, int ranks, InspectionRequest inspection) {
    throw_if_stopped();
    say(what);
    inspection.folder = (request_.keep.empty() ? scratch_.path() : request_.keep) + "/" + std::to_string(++made_);
    inspection.ranks = ranks;
    std::filesystem::create_directories(inspection.folder);
    ::setenv(kInspectVariable, inspection.to_text().c_str(), 1);
    DebugRun run;
    run.ranks = ranks;
    std::string said;
    PipedCommand program(command(ranks, inspection.folder));
    ::unsetenv(kInspectVariable);
    const auto deadline = Clock::now() + kPatience;
    const auto status = wait_for(program, deadline, said);
    run.timed_out = Clock::now() >= deadline;
    run.exit_code = exit_code_of_wait_status(status);
    run.error = first_error(program.errors());
    if (run.error.empty()) run.error = first_error(said);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto path = inspection.folder + "/rank" + std::to_string(rank) + ".json";
      if (std::filesystem::exists(path)) run.records.push_back(InspectionRecord::read(path));
    }
    return run;
  }

  static int wait_for(PipedCommand& program, Clock::time_point deadline, std::string& said) {
    while (Clock::now() < deadline) {
      throw_if_stopped();
      const auto look_again = std::min(deadline, Clock::now() + 200ms);
      const auto line = program.read_line(look_again);
      if (!line && Clock::now() < look_again) break;  // it says no more
      if (line && said.size() < (1 << 20)) said += *line + "\n";
    }
    return program.finish(std::min(deadline, Clock::now() + 10s));
  }

  std::vector<HostFinding> look_at_hosts(bool with_ranks) {
    throw_if_stopped();
    say("the hosts");
    std::vector<std::string> words{troupe_, "doctor", "--json", "--run-dir", scratch_ / "runs"};
    if (!request_.hosts.empty()) words.insert(words.end(), {"--hosts", request_.hosts});
    if (!request_.ssh_config.empty()) words.insert(words.end(), {"--ssh-config", request_.ssh_config});
    if (!with_ranks) words.emplace_back("--no-ranks");
    const auto* const before = std::getenv("TMPDIR");
    const std::string folder = before == nullptr ? "" : before;
    ::setenv("TMPDIR", scratch_.path().c_str(), 1);  // its folder goes with ours, even if it is killed
    PipedCommand doctor(words);
    folder.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", folder.c_str(), 1);
    std::string said;
    wait_for(doctor, Clock::now() + kPatience, said);
    std::vector<HostFinding> findings;
    try {
      const auto json = nlohmann::json::parse(said);
      for (const auto& each : json.at("findings"))
        findings.push_back(
            {each.at("host"), each.at("check"), each.at("verdict"), each.at("found"), each.at("remedy")});
    } catch (const nlohmann::json::exception&) {
      const auto error = first_error(doctor.errors(), "troupe: ");
      findings.push_back(
          {{}, "doctor", "fail", error.empty() ? "troupe doctor said nothing" : error, "run troupe doctor by itself"});
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
  if (request.help) return std::fputs(kDebugHelp, stdout), 0;
  std::signal(SIGINT, note_signal);
  std::signal(SIGTERM, note_signal);
  const auto findings = judge(Debug(request, troupe_program).run());
  std::cout << (request.json ? to_json(findings) : to_table(findings)) << std::flush;
  return exit_code(findings);
}

}  // namespace troupe
