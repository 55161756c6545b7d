#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "launch/config/command_flags.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/terminal.hpp"
#include "launch/report/run_report.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

constexpr const char* kReportHelp =
    "usage: troupe report [RUN [BASELINE]] [--out FILE] [--baseline RUN]\n"
    "\n"
    "Writes one HTML page about a run: how it ended, the time of a step, failures, advice, loss, accuracy, throughput, "
    "memory, and how equal the ranks are. With a BASELINE it compares the two runs. The page needs no other file.\n"
    "\n"
    "  RUN              the folder of the run (default: runs/latest)\n"
    "  BASELINE         another run to compare with: which is faster, which has the lower loss; if it has fewer "
    "ranks, scaling efficiency is measured against it\n"
    "  --out FILE       the page (default: RUN/report.html)\n"
    "  --baseline RUN   the same as BASELINE, also without RUN\n"
    "\n"
    "exit code: 0, or 65 if a folder holds no run\n"
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
  const std::string verb = "troupe report", help = "see troupe report --help";
  if (runs.size() > 2)
    throw Error(ErrorCode::usage, verb, "it takes two runs at most, and " + std::to_string(runs.size()) + " were given",
                help);
  if (std::ranges::find(runs, "") != runs.end())
    throw Error(ErrorCode::usage, verb, "the name of a run is empty", help);
  if (runs.size() == 2 && !read.baseline.empty())
    throw Error(ErrorCode::usage, verb, "--baseline and a second run are the same, and both were given",
                "leave one of them out");
  read.run = runs.empty() ? "runs/latest" : runs[0];
  if (runs.size() == 2) read.baseline = runs[1];
  std::error_code missing;  // which reading it reports
  if (!read.baseline.empty() && std::filesystem::equivalent(read.run, read.baseline, missing))
    throw Error(ErrorCode::usage, verb,
                displayable(read.run, 200) + " and " + displayable(read.baseline, 200) + " are the same run",
                "name another run to compare with");
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
  const MeasuredRun run(read_run(asked.run));
  std::optional<MeasuredRun> baseline;
  if (!asked.baseline.empty()) {
    baseline.emplace(read_run(asked.baseline));
    if (baseline->numbers.intervals == 0 || baseline->numbers.world_size < 1)
      throw Error(ErrorCode::bad_data, displayable(asked.baseline, 200), "its records have no log line to compare with",
                  "run it longer, or lower log_interval");
  }
  const auto report = report_on(run, baseline ? &*baseline : nullptr);
  write_page(asked.out, report_html(report));
  std::printf("%s\n", asked.out.c_str());
  for (const auto& line : report_lines(report)) std::printf("%s\n", displayable(line, 900).c_str());
  return 0;
}

}  // namespace troupe
