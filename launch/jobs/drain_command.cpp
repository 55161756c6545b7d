#include "launch/jobs/drain_command.hpp"

#include <cstdio>

#include "launch/config/command_flags.hpp"
#include "launch/jobs/living_jobs.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/terminal.hpp"
#include "launch/run/run_identity.hpp"
#include "launch/run/run_socket.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

constexpr const char* kHelp =
    "usage: troupe drain HOST [RUN]\n"
    "\n"
    "The ranks of a host finish their step and leave the job. No step is lost, and the other ranks go on. Run it on "
    "the host of the launcher. SIGTERM does the same if it is sent to the host's agent (`troupe node`), or to the "
    "`troupe launch` of a node that is not the first.\n"
    "\n"
    "  HOST   the name of the host in the host list\n"
    "  RUN    the folder of the run (default: runs/latest)\n"
    "\n"
    "exit code: 0, or 2 if the job has no such host, or 69 if no job of yours has this folder\n"
    "example: troupe drain gpu7\n";

}  // namespace

int drain_command(const std::vector<std::string>& words) {
  bool help = false;
  const auto given = read_words(words, {{"--help", &help}, {"-h", &help}}, "troupe drain");
  if (help) return print_help(kHelp), 0;
  if (given.empty() || given.size() > 2)
    throw Error(ErrorCode::usage, "troupe drain", "it takes a HOST and optionally a RUN", "see troupe drain --help");
  const std::string run = given.size() < 2 ? std::string(kRunsFolder) + "/latest" : given[1];
  const auto name = displayable(run, 200);
  const auto job = living_job_in(run);
  if (!job)
    throw Error(ErrorCode::unavailable, name, "no job of yours on this host has this folder",
                "see troupe ps for your jobs");
  const auto answer = ask_run(job->folder, "drain " + given[0]);
  if (answer.empty())
    throw Error(ErrorCode::usage, name, "its launcher has no list of hosts",
                "send SIGTERM to the `troupe launch` of the node that is to leave");
  const bool done = answer.starts_with("ok ");
  if (!done) throw Error(ErrorCode::usage, displayable(given[0], 200), answer, "");
  std::puts(answer.substr(3).c_str());
  return 0;
}

}  // namespace troupe
