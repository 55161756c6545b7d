#include "launch/doctor/doctor_ranks.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "launch/process/piped_command.hpp"
#include "launch/process/scratch_folder.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

std::string host_list(const std::vector<Host>& hosts) {
  std::string text;
  for (const auto& host : hosts) {
    text += host.name + " slots=" + (hosts.size() == 1 ? "2" : "1") + " address=" + host.address;
    if (host.port != 0) text += " port=" + std::to_string(host.port);
    if (!host.user.empty()) text += " user=" + host.user;
    text += "\n";
  }
  return text;
}

std::string last_words(const std::string& errors) {
  std::istringstream lines(errors);
  std::string found;
  // What a rank says of itself is worth more than what follows from it.
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && (found.find("error: ") == std::string::npos)) found = line;
  }
  return found.empty() ? "no reason was given" : found;
}

}  // namespace

DoctorCheck ranks_check(const std::string& troupe_program, std::chrono::seconds patience) {
  return [troupe_program, patience](const std::vector<Host>& hosts, const DoctorPlace& place) -> std::vector<Finding> {
    std::vector<Finding> findings;
    const auto fail = [&](const std::string& found, const std::string& remedy) {
      findings.push_back({{}, "collective", Verdict::fail, found, remedy});
    };
    try {
      const ScratchFolder folder("troupe-doctor");
      std::vector<std::string> words{troupe_program, "launch", "--no-recovery", "--run-dir", folder / "run"};
      if (hosts.empty()) {
        words.insert(words.end(), {"--nproc", "2"});
      } else {
        std::ofstream(folder / "hosts") << host_list(hosts);
        words.insert(words.end(), {"--hosts", folder / "hosts"});
        if (!place.ssh_config.empty()) words.insert(words.end(), {"--ssh-config", place.ssh_config});
        if (!place.remote_troupe.empty()) words.insert(words.end(), {"--remote-troupe", place.remote_troupe});
      }
      const auto program = std::filesystem::path(troupe_program).parent_path() / "troupe-check-ranks";
      words.insert(words.end(), {program.string(), "--run_dir", "", "--collective_timeout", "20", "--ranks", "1"});
      PipedCommand launch(words);
      const auto deadline = PipedCommand::Clock::now() + patience;
      const std::string mark = "[rank 0] ";
      while (const auto line = launch.read_line(deadline)) {
        if (!line->starts_with(mark)) continue;
        std::istringstream fields(line->substr(mark.size()));
        Finding finding;
        std::string verdict;
        if (!std::getline(fields, finding.check, '\t') || !std::getline(fields, verdict, '\t') ||
            !std::getline(fields, finding.found, '\t'))
          continue;
        std::getline(fields, finding.remedy, '\t');
        finding.verdict = verdict == "ok" ? Verdict::ok : Verdict::fail;
        findings.push_back(std::move(finding));
      }
      const bool late = PipedCommand::Clock::now() >= deadline;
      const int status =
          launch.finish(late ? PipedCommand::Clock::now() : PipedCommand::Clock::now() + std::chrono::seconds(10));
      if (late) {
        fail("the ranks did not end within " + std::to_string(patience.count()) + " s: " + last_words(launch.errors()),
             "is every port between the hosts open? ranks connect to each other");
      } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fail("a rank on every host: " + last_words(launch.errors()),
             "start it by hand: troupe launch --hosts FILE troupe-check-ranks");
      }
    } catch (const Error& error) {
      fail(error.report().cause, error.report().remedy);
    }
    return findings;
  };
}

}  // namespace troupe
