#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include <unistd.h>

#include "launch/config/config.hpp"
#include "launch/observe/run_report.hpp"
#include "launch/process/displayable.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

constexpr const char* kReportHelp =
    "usage: troupe report [RUN] [--out FILE] [--baseline RUN]\n"
    "\n"
    "One HTML page about a run, whole in itself: loss, where the time of a step goes, exposed communication, how equal "
    "the ranks are, "
    "idle\n"
    "share, failures and recoveries, and advice.\n"
    "\n"
    "  RUN              the run's folder (runs/latest)\n"
    "  --out FILE       the page (RUN/report.html)\n"
    "  --baseline RUN   the same work with fewer ranks, one say: scaling efficiency is measured against it\n"
    "\n"
    "example: troupe report runs/latest\n";

struct Words {
  std::string run, out, baseline;
  bool help = false;
};

Words read(const std::vector<std::string>& words) {
  Words read;
  const std::vector<std::pair<std::string, std::string*>> flags{{"--out", &read.out}, {"--baseline", &read.baseline}};
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto equals = words[i].find('=');
    const auto name = words[i].substr(0, equals);
    if (name == "--help" || name == "-h") {
      read.help = true;
    } else if (const auto flag = std::find_if(flags.begin(), flags.end(), [&](auto& f) { return f.first == name; });
               flag != flags.end()) {
      if (equals == std::string::npos && i + 1 == words.size())
        throw Error(ErrorCode::usage, name, "the flag has no value");
      *flag->second = equals == std::string::npos ? words[++i] : words[i].substr(equals + 1);
      if (flag->second->empty()) throw Error(ErrorCode::usage, name, "the flag has no value");
    } else if (words[i].starts_with("-")) {
      const auto near = nearest_name(name, {"--out", "--baseline"});
      throw Error(ErrorCode::usage, "troupe report", "there is no flag " + displayable(words[i]),
                  near.empty() ? "see troupe report --help" : "did you mean " + near + "?");
    } else if (words[i].empty() || !read.run.empty()) {
      throw Error(ErrorCode::usage, "troupe report", "it takes one RUN", "see troupe report --help");
    } else {
      read.run = words[i];
    }
  }
  if (read.run.empty()) read.run = "runs/latest";
  if (read.out.empty()) read.out = read.run + "/report.html";
  return read;
}

// Under another name first: half a page is none.
void write_page(const std::string& path, const std::string& page) {
  const auto part = path + "." + std::to_string(::getpid()) + ".part";
  std::FILE* file = std::fopen(part.c_str(), "wx");
  bool written = file != nullptr && std::fwrite(page.data(), 1, page.size(), file) == page.size();
  if (file != nullptr && std::fclose(file) != 0) written = false;
  if (written && std::rename(part.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  if (file != nullptr) std::remove(part.c_str());
  throw Error(ErrorCode::io, displayable(path, 200), std::strerror(error), "choose another --out");
}

}  // namespace

int report_command(const std::vector<std::string>& words) {
  const auto asked = read(words);
  if (asked.help) return std::fputs(kReportHelp, stdout), 0;
  const auto run = read_run(asked.run);
  const auto numbers = numbers_of(run.records);
  std::optional<RunNumbers> baseline;
  if (!asked.baseline.empty()) {
    baseline = numbers_of(read_run(asked.baseline).records);
    if (baseline->intervals == 0 || baseline->world_size < 1)
      throw Error(ErrorCode::bad_data, displayable(asked.baseline, 200),
                  "its records do not say how quick how many ranks were", "run it again with this troupe");
    if (baseline->world_size >= std::max(1, numbers.world_size))
      throw Error(ErrorCode::usage, "--baseline",
                  "that run has " + std::to_string(baseline->world_size) + " ranks, this one " +
                      std::to_string(numbers.world_size),
                  "give a run with fewer ranks");
  }
  const auto advice = advise(numbers, baseline ? &*baseline : nullptr);
  write_page(asked.out, report_html(run, numbers, advice));
  std::printf("%s\n", asked.out.c_str());
  for (const auto& remark : run.remarks) std::printf("missing: %s\n", displayable(remark, 300).c_str());
  for (const auto& item : advice) {
    std::printf("%s: %s%s\n", item.subject.c_str(), displayable(item.finding, 400).c_str(),
                item.remedy.empty() ? "" : (" Try: " + displayable(item.remedy, 400) + ".").c_str());
  }
  return 0;
}

}  // namespace troupe
