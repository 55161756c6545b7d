#include "launch/launcher/failure_report.hpp"

#include <filesystem>
#include <fstream>
#include <string_view>

#include "launch/config/command_flags.hpp"
#include "launch/hosts/ssh_command.hpp"

namespace troupe {
namespace {

// As a person would type it: quotes only where they are needed.
std::string typed(const std::string& word) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./=:,+-@%";
  return !word.empty() && word.find_first_not_of(kPlain) == std::string::npos ? word : quote_for_shell(word);
}

// What --resume is to say after a save: another value than these may name an earlier step.
std::string newest_of(const std::string& run, const std::string& given) {
  return given == "auto" || given == "latest" ? given : run;
}

}  // namespace

std::string describe_failure(const FailedProcess& failed, bool remote) {
  std::string text = "troupe: rank " + std::to_string(failed.slot) + " on " + failed.host + " failed: " + failed.how +
                     "; its log: " + failed.log_path + "\n";
  if (!failed.last_line.empty()) text += "troupe: its last line: " + failed.last_line + "\n";
  const auto look =
      "tail -n 50 " + typed(remote ? std::filesystem::absolute(failed.log_path).string() : failed.log_path);
  return text + "troupe: next: " + (remote ? "ssh " + failed.host + " " + look : look) + "\n";
}

std::string resume_command(const std::vector<std::string>& words, const std::string& run) {
  std::string text;
  bool resumes = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    auto word = words[i];
    const auto flag = flag_in(word);
    const auto equals = word.find('=');
    if (flag == "--resume" || (flag.starts_with("--") && flag.ends_with(".resume"))) {  // also --checkpoint.resume
      resumes = true;
      if (equals != std::string::npos) {
        word = word.substr(0, equals + 1) + newest_of(run, word.substr(equals + 1));
      } else {
        text += typed(word) + " ";
        word = newest_of(run, ++i < words.size() ? words[i] : std::string());
      }
    }
    text += typed(word) + " ";
  }
  return resumes ? text.substr(0, text.size() - 1) : text + "--resume " + typed(run);
}

std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

}  // namespace troupe
