#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "launch/config/command_flags.hpp"
#include "launch/observe/run_report.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/terminal.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

constexpr const char* kReportHelp =
    "usage: troupe report [RUN] [--out FILE] [--baseline RUN]\n"
    "\n"
    "Writes one HTML page about a run: loss, where the time of a step goes, exposed communication, how equal the ranks "
    "are, idle share, failures and recoveries, and advice. The page needs no other file.\n"
    "\n"
    "  RUN              the folder of the run (default: runs/latest)\n"
    "  --out FILE       the page (default: RUN/report.html)\n"
    "  --baseline RUN   the same work with fewer ranks; scaling efficiency is measured against it\n"
    "\n"
    "exit code: 0, or 65 if the folder holds no run\n"
    "example: troupe report runs/latest\n";

struct Words {
  std::string run, out, baseline;
  bool help = false;
};

Words read(const std::vector<std::string>& words) {
  Words read;
  const auto runs = read_words(
      words,
      {{"--out", filled(read.out)}, {"--baseline", filled(read.baseline)}, {"--help", &read.help}, {"-h", &read.help}},
      "troupe report");
  if (runs.size() > 1 || (runs.size() == 1 && runs[0].empty()))
    throw Error(ErrorCode::usage, "troupe report", "it takes one RUN", "see troupe report --help");
  read.run = runs.empty() ? "runs/latest" : runs[0];
  if (read.out.empty()) read.out = read.run + "/report.html";
  return read;
}

void write_page(const std::string& path, const std::string& page) {
  try {
    replace_text(path, page);
  } catch (const Error& error) {
    throw Error(ErrorCode::io, displayable(path, 200), error.report().cause, "choose another --out");
  }
}

}  // namespace

int report_command(const std::vector<std::string>& words) {
  const auto asked = read(words);
  if (asked.help) return print_help(kReportHelp), 0;
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
