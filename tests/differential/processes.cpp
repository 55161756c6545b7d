#include "tests/differential/processes.hpp"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "launch/config/unread_settings.hpp"
#include "launch/observe/append_file.hpp"
#include "tests/support/running_process.hpp"
#include "tests/support/scratch_directory.hpp"

namespace troupe::differential {
namespace {

constexpr std::chrono::seconds kLimit{50};  // of one run

std::string fault_of(const Job& job) {
  if (!kills(job)) return {};
  return "slot=" + std::to_string(hurt_rank_of(job)) + ",step=" + std::to_string(hurt_step_of(job)) +
         ",at=" + job.kill_at;
}

/// What the processes, or the launcher, said of errors, in one line. Those for which all began anew are mended.
std::string errors_in(const std::string& output) {
  std::string errors;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("all ranks are started again") != std::string::npos) errors.clear();
    if (line.starts_with("error: ") || line.find("] error: ") != std::string::npos) errors += line + "; ";
  }
  return errors;
}

/// The settings that this job reads: others are refused.
std::string read_settings(const Config& config) {
  const auto unread = unread_settings(config);
  std::istringstream lines(config_to_toml(config));
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (!unread.contains(line.substr(0, line.find(' ')))) text += line + "\n";
  }
  return text;
}

/// The notes of all processes, in the order in which they were taken. Half a line is a killed process's last.
void read_notes(const std::string& folder, Notes& notes) {
  std::multimap<std::int64_t, nlohmann::json> by_time;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::istringstream lines(testing::read_text(file.path()));
    for (std::string line; std::getline(lines, line);) {
      const auto entry = nlohmann::json::parse(line, nullptr, false);
      if (!entry.is_discarded()) by_time.emplace(entry["ns"].get<std::int64_t>(), entry["note"]);
    }
  }
  for (const auto& [time, note] : by_time) notes.add(note);
}

}  // namespace

std::string run_processes(const Run& run, Notes& notes) {
  const testing::ScratchDirectory folder;
  auto config = run.config;
  config.ranks = 1;  // of each process
  testing::write_text(folder / "config.toml", read_settings(config));
  testing::write_text(folder / "run.json", nlohmann::json({{"job", run.job}, {"stop_after", run.stop_after}}).dump());
  std::filesystem::create_directory(folder / "notes");

  const auto fault = fault_of(run.job);
  std::vector<std::string> command{TROUPE_PROGRAM, "launch",      "--nproc", std::to_string(run.job.ranks),
                                   "--run-dir",    config.run_dir};
  if (fault.empty()) command.emplace_back("--no-recovery");
  if (!fault.empty()) command.insert(command.end(), {"--replace-timeout", run.job.event == "lose" ? "0" : "60"});
  if (run.job.event == "lose") command.insert(command.end(), {"--max-restarts", "0"});
  command.insert(command.end(), {TROUPE_DIFFERENTIAL, "--rank", folder.path(), "--config", folder / "config.toml"});
  const auto done = testing::RunningProcess(command, {{"TROUPE_FAULT", fault}}).finish(kLimit);
  std::fputs(done.output.c_str(), stderr);
  read_notes(folder / "notes", notes);

  auto errors = errors_in(done.output);
  if (done.code < 0)
    return "hangs: the processes were not over after " + std::to_string(kLimit.count()) + " s; " + errors;
  const bool stopped = run.stop_after > 0 && done.code == 128 + SIGTERM;
  if (done.code == 0 || stopped) return errors;
  return errors.empty() ? "exit code " + std::to_string(done.code) : errors;
}

int rank_main(const std::string& folder) {
  const auto run = nlohmann::json::parse(testing::read_text(folder + "/run.json"));
  const auto job = run.at("job").get<Job>();
  AppendFile notes(folder + "/notes/" + std::to_string(::getpid()) + ".jsonl");
  const auto take = [&](const nlohmann::json& note) {
    const auto ns = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    notes.append(nlohmann::json({{"ns", ns}, {"note", note}}).dump() + "\n");
  };
  std::string words[] = {"differential", "--config", folder + "/config.toml"};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  add_extensions();
  return troupe::main(3, arguments, [&](Rank& rank) { live(job, run.at("stop_after"), rank, take); });
}

}  // namespace troupe::differential
