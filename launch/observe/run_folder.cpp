#include "launch/observe/run_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "launch/process/displayable.hpp"
#include "launch/run/run_file.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxMetrics = std::uintmax_t{1} << 30;

void read_lines(const std::string& path, RunHistory& run) {
  std::error_code failure;
  if (!fs::is_regular_file(path, failure))
    throw Error(ErrorCode::bad_data, displayable(path, 200), "there is no such file, so this is not a run's folder",
                "give the --run_dir of a run, such as runs/latest");
  if (fs::file_size(path, failure) > kMaxMetrics)
    throw Error(ErrorCode::bad_data, displayable(path, 200), "it is longer than 1 GiB",
                "log less often: --log_interval");
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::io, displayable(path, 200), std::strerror(errno));
  RunLines lines;
  bool torn = false;
  for (std::string line; std::getline(file, line);) {
    torn = file.eof();  // its end is missing
    if (!torn) lines.add(line);
  }
  if (lines.records().empty()) {
    throw Error(ErrorCode::bad_data, displayable(path, 200),
                lines.bad_lines() == 0 ? "it holds no record: the run ended before its first log line"
                                       : "no line of it is a record",
                lines.bad_lines() == 0 ? "see the ranks' logs beside it" : "it is not what a run writes");
  }
  if (lines.bad_lines() > 0) {
    run.remarks.push_back(std::to_string(lines.bad_lines()) + (lines.bad_lines() == 1 ? " line" : " lines") +
                          " of metrics.jsonl can't be read, the first is line " +
                          std::to_string(lines.first_bad_line()) + ".");
  }
  if (torn)
    run.remarks.emplace_back(
        "The last line of metrics.jsonl is torn: rank 0 was killed while it wrote, or writes now.");
  run.records = std::move(lines).take();
}

void read_facts(const std::string& folder, RunHistory& run) {
  if (read_run_json(folder).empty())
    return void(
        run.remarks.emplace_back("There is no run.json that is a file of at most 1 MiB: what was run is not known."));
  const auto entry = run_facts(folder);
  if (!entry.is_object()) return void(run.remarks.emplace_back("run.json can't be read: what was run is not known."));
  auto& facts = run.facts;
  facts.job_id = text_of(entry, "job_id");
  facts.started = text_of(entry, "started");
  facts.strategy = text_of(entry, "strategy");
  facts.backend = text_of(entry, "backend");
  if (const auto versions = entry.find("versions"); versions != entry.end() && versions->is_object())
    facts.version = text_of(*versions, "troupe");
  if (const auto command = entry.find("command"); command != entry.end() && command->is_array()) {
    for (const auto& word : *command) {
      if (word.is_string()) facts.command += (facts.command.empty() ? "" : " ") + word.get<std::string>();
    }
  }
}

}  // namespace

void RunLines::add(const std::string& line) {
  ++lines_;
  if (line.empty()) return;
  auto record = record_from_json(line);
  if (record.step < 0) {
    if (bad_++ == 0) first_bad_ = lines_;
    return;
  }
  if (record.kind == MetricRecord::Kind::start) start(record);
  records_.push_back(std::move(record));
}

void RunLines::start(const MetricRecord& record) {
  if (record.step == 0 && record.generation <= 1) return records_.clear();
  std::erase_if(records_, [&](const MetricRecord& old) {
    return old.step > record.step &&
           (old.kind == MetricRecord::Kind::train || old.kind == MetricRecord::Kind::validation);
  });
}

RunHistory read_run(const std::string& folder) {
  RunHistory run;
  run.folder = folder;
  read_lines(folder + "/metrics.jsonl", run);
  read_facts(folder, run);
  if (const auto code = noted_exit(folder)) run.facts.exit_code = std::to_string(*code);
  return run;
}

}  // namespace troupe
