#include "launch/observe/trace_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>

#include <nlohmann/json.hpp>

#include "actors/messages/rank_list.hpp"
#include "launch/process/formatted.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using TraceJson = nlohmann::ordered_json;

constexpr const char* kPartial = ".partial";

TraceJson facts_of(const TraceRank& rank) {
  const auto& totals = rank.totals;
  return {{"rank", rank.rank},
          {"host", rank.host},
          {"events", totals.events},
          {"dropped_events", totals.dropped},
          {"first_step", totals.first_step},
          {"last_step", totals.last_step},
          {"clock_offset_us", static_cast<double>(rank.clock.offset_ns) / 1e3},
          {"clock_error_us", static_cast<double>(rank.clock.error_ns) / 1e3},
          {"collectives_ms", static_cast<double>(totals.collectives_ns) / 1e6},
          {"hidden_ms", static_cast<double>(totals.hidden_ns) / 1e6},
          {"overlap", totals.overlap()}};
}

std::string dump_of(const TraceJson& json) { return json.dump(-1, ' ', false, TraceJson::error_handler_t::replace); }

TraceTotals totals_over(const std::vector<TraceRank>& ranks) {
  TraceTotals sum;
  for (const auto& rank : ranks) sum.add(rank.totals);
  return sum;
}

}  // namespace

std::string write_trace_of_rank(const std::string& run_dir, const TraceRank& rank, int world_size,
                                const std::string& events) {
  std::error_code failure;
  const auto folder = run_dir + "/trace";
  refuse_foreign_link(folder);
  fs::create_directories(folder, failure);
  if (failure) throw Error(ErrorCode::io, folder, failure.message());
  auto name = folder + "/rank-" + std::to_string(rank.rank) + ".json";
  replace_file(name, real_files(), [&](DurableFile& file) {
    // HTA looks for the rank with a regular expression that wants the blank.
    file.append(R"({"schemaVersion":1,"distributedInfo":{"backend":"nccl","rank": )" + std::to_string(rank.rank) +
                R"(,"world_size": )" + std::to_string(world_size) + "},\"deviceProperties\":[],\"traceEvents\":[\n");
    file.append(events);
    file.append("\n],\"otherData\":" + dump_of(facts_of(rank)) + "}\n");
  });
  return name;
}

TraceFile::TraceFile(std::string run_dir, std::string job_id, ProfileSetting window, int world_size)
    : run_dir_(std::move(run_dir)),
      job_id_(std::move(job_id)),
      window_(window),
      world_size_(world_size),
      all_(path() + kPartial) {
  std::error_code ignored;
  fs::create_directories(run_dir_ + "/trace", ignored);
  fs::remove(path(), ignored);
  fs::remove(path() + kPartial, ignored);
  try {
    refuse_foreign_link(run_dir_ + "/trace");
    all_.append("{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  } catch (const Error& error) {
    fail(error);
    return;
  }
  for (fs::directory_iterator entry(run_dir_ + "/trace", ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    if (entry->path().filename().string().starts_with("rank-")) fs::remove(entry->path(), ignored);
  }
}

TraceFile::~TraceFile() {
  std::error_code ignored;
  fs::remove(path() + kPartial, ignored);  // after finish there is none
}

void TraceFile::fail(const Error& error) {
  if (problem_.empty()) problem_ = error.report().operation + ": " + error.report().cause;
  std::error_code ignored;
  fs::remove(this->path() + kPartial, ignored);
}

void TraceFile::add(const TraceRank& rank, const std::string& events) {
  const bool first = ranks_.empty();
  ranks_.push_back(rank);
  if (!problem_.empty()) return;
  try {
    if (!first) all_.append(",\n");
    all_.append(events);
    write_trace_of_rank(run_dir_, rank, world_size_, events);
  } catch (const Error& error) {
    fail(error);
  }
}

void TraceFile::finish() {
  if (!problem_.empty()) return;
  const auto sum = totals_over(ranks_);
  TraceJson other{
      {"job_id", job_id_},
      {"first_step", window_.first},
      {"last_step", window_.last - 1},
      {"world_size", world_size_},
      {"overlap", sum.overlap()},
      {"clock", "us of the steady clock of rank 0's host; a rank's events are wrong by clock_error_us at most"},
      {"ranks", TraceJson::array()}};
  for (const auto& rank : ranks_) other["ranks"].push_back(facts_of(rank));
  try {
    all_.append("\n],\"otherData\":" + dump_of(other) + "}\n");
    if (std::rename((path() + kPartial).c_str(), path().c_str()) != 0) throw_io_error("renaming to", path(), errno);
  } catch (const Error& error) {
    fail(error);
  }
}

std::string describe_trace(const std::string& path, const ProfileSetting& window, const std::vector<TraceRank>& ranks,
                           int began_with) {
  const auto sum = totals_over(ranks);
  std::string text = "trace: " + path + ": ";
  if (sum.first_step < 0)
    return text + "no step from " + std::to_string(window.first) + " to " + std::to_string(window.last - 1) +
           " was made";
  const auto steps = static_cast<double>(sum.last_step - sum.first_step + 1) *
                     static_cast<double>(std::max<std::size_t>(1, ranks.size()));
  text += formatted(
      "%zu rank%s, steps %lld to %lld, %lld events; overlap %.1f%%: %.3f ms a step in collectives, %.3f hidden",
      ranks.size(), ranks.size() == 1 ? "" : "s", static_cast<long long>(sum.first_step),
      static_cast<long long>(sum.last_step), static_cast<long long>(sum.events), 100 * sum.overlap(),
      static_cast<double>(sum.collectives_ns) / 1e6 / steps, static_cast<double>(sum.hidden_ns) / 1e6 / steps);
  std::int64_t error = 0;
  std::vector<int> dropped;
  std::map<std::int64_t, std::vector<int>> late;
  for (const auto& rank : ranks) {
    error = std::max(error, rank.clock.error_ns);
    if (rank.totals.dropped > 0) dropped.push_back(rank.rank);
    if (rank.totals.first_step != sum.first_step) late[rank.totals.first_step].push_back(rank.rank);
  }
  if (error > 0) text += "; clocks fit within " + std::to_string((error + 999) / 1000) + " us";
  for (const auto& [step, who] : late) {
    text += "; " + rank_list(who) +
            (step < 0 ? ": nothing, since it joined later"
                      : ": from step " + std::to_string(step) + " on, the steps before are lost");
  }
  const auto gone = began_with - static_cast<int>(ranks.size());
  if (gone > 0)
    text += "; " + std::to_string(gone) + " of " + std::to_string(began_with) + " ranks were lost with their records";
  if (!dropped.empty())
    text += "; " + rank_list(dropped) + " had more than " + std::to_string(TraceRecorder::kLimit) +
            " events: the last " + std::to_string(sum.dropped) + " are missing";
  return text;
}

}  // namespace troupe
