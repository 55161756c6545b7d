#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
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
    "Writes one HTML page about a run: how it ended, where the time of a step goes, failures and recoveries, advice, "
    "loss, throughput, and how equal the ranks are. The page needs no other file.\n"
    "\n"
    "  RUN              the folder of the run (default: runs/latest)\n"
    "  --out FILE       the page (default: RUN/report.html)\n"
    "  --baseline RUN   another run to compare with: which is faster, which has the lower loss; if it has fewer "
    "ranks, scaling efficiency is measured against it\n"
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
  std::optional<RunHistory> baseline;
  RunNumbers fewer;
  if (!asked.baseline.empty()) {
    baseline = read_run(asked.baseline);
    fewer = numbers_of(baseline->records);
    if (fewer.intervals == 0 || fewer.world_size < 1)
      throw Error(ErrorCode::bad_data, displayable(asked.baseline, 200), "its records have no log line to compare with",
                  "run it longer, or lower log_interval");
  }
  const auto advice = advise(numbers, baseline && fewer.world_size < numbers.world_size ? &fewer : nullptr);
  write_page(asked.out, report_html(run, numbers, advice, baseline ? &*baseline : nullptr));
  std::printf("%s\n", asked.out.c_str());
  auto lines = outcome_lines(run, numbers);
  if (baseline) std::ranges::copy(comparison(run, *baseline), std::back_inserter(lines));
  for (const auto& line : lines) std::printf("%s\n", displayable(line, 800).c_str());
  for (const auto& remark : run.remarks) std::printf("missing: %s\n", displayable(remark, 300).c_str());
  for (const auto& item : advice) {
    std::printf("%s: %s%s\n", item.subject.c_str(), displayable(item.finding, 400).c_str(),
                item.remedy.empty() ? "" : (" Try: " + displayable(item.remedy, 400) + ".").c_str());
  }
  return 0;
}

}  // namespace troupe
