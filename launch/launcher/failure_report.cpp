#include "launch/launcher/failure_report.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "launch/hosts/ssh_command.hpp"

namespace troupe {
namespace {

// As a person would type it: quotes only where they are needed.
std::string typed(const std::string& word) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./=:,+-@%";
  return !word.empty() && word.find_first_not_of(kPlain) == std::string::npos ? word : quote_for_shell(word);
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

std::string resume_command(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : " ") + typed(word);
  const bool resumes = std::find(words.begin(), words.end(), "--resume") != words.end();
  return text + (resumes ? "" : " --resume auto");
}

std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

}  // namespace troupe
