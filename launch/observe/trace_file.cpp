#include "launch/observe/trace_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>

#include <nlohmann/json.hpp>

#include "actors/messages/rank_list.hpp"

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
  fs::create_directories(run_dir + "/trace", failure);
  auto name = run_dir + "/trace/rank-" + std::to_string(rank.rank) + ".json";
  const auto partial = name + kPartial;
  {
    std::ofstream file(partial, std::ios::binary);
    // HTA looks for the rank with a regular expression that wants the blank.
    file << R"({"schemaVersion":1,"distributedInfo":{"backend":"nccl","rank": )" << rank.rank << R"(,"world_size": )"
         << world_size << "},\"deviceProperties\":[],\"traceEvents\":[\n"
         << events << "\n],\"otherData\":" << dump_of(facts_of(rank)) << "}\n";
    if (!file.flush()) {
      const auto why = errno;
      fs::remove(partial, failure);
      errno = why;
      return {};
    }
  }
  if (std::rename(partial.c_str(), name.c_str()) != 0) {
    const auto why = errno;
    fs::remove(partial, failure);
    errno = why;
    return {};
  }
  return name;
}

TraceFile::TraceFile(std::string run_dir, std::string job_id, ProfileSetting window, int world_size)
    : run_dir_(std::move(run_dir)), job_id_(std::move(job_id)), window_(window), world_size_(world_size) {
  std::error_code ignored;
  fs::create_directories(run_dir_ + "/trace", ignored);
  fs::remove(path(), ignored);
  for (fs::directory_iterator entry(run_dir_ + "/trace", ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    if (entry->path().filename().string().starts_with("rank-")) fs::remove(entry->path(), ignored);
  }
  all_.open(path() + kPartial, std::ios::binary);
  if (!(all_ << "{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")) fail(path());
}

TraceFile::~TraceFile() {
  std::error_code ignored;
  if (all_.is_open()) fs::remove(path() + kPartial, ignored);
}

void TraceFile::fail(const std::string& path) {
  if (problem_.empty()) problem_ = path + ": " + std::strerror(errno);
  std::error_code ignored;
  all_.close();
  fs::remove(this->path() + kPartial, ignored);
}

void TraceFile::add(const TraceRank& rank, const std::string& events) {
  const bool first = ranks_.empty();
  ranks_.push_back(rank);
  if (!problem_.empty()) return;
  if (!(all_ << (first ? "" : ",\n") << events)) return fail(path());
  if (write_trace_of_rank(run_dir_, rank, world_size_, events).empty()) fail(run_dir_ + "/trace");
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
  all_ << "\n],\"otherData\":" << dump_of(other) << "}\n";
  if (!all_.flush()) return fail(path());
  all_.close();
  std::error_code failure;
  fs::rename(path() + kPartial, path(), failure);
  if (failure) fail(path());
}

std::string describe_trace(const std::string& path, const ProfileSetting& window, const std::vector<TraceRank>& ranks,
                           int began_with) {
  const auto sum = totals_over(ranks);
  std::string text = "trace: " + path + ": ";
  if (sum.first_step < 0)
    return text + "no step of " + std::to_string(window.first) + " to " + std::to_string(window.last - 1) + " was made";
  const auto steps = static_cast<double>(sum.last_step - sum.first_step + 1) *
                     static_cast<double>(std::max<std::size_t>(1, ranks.size()));
  char line[256];
  std::snprintf(
      line, sizeof line,
      "%zu rank%s, steps %lld to %lld, %lld events; overlap %.1f%%: %.3f ms a step in collectives, %.3f hidden",
      ranks.size(), ranks.size() == 1 ? "" : "s", static_cast<long long>(sum.first_step),
      static_cast<long long>(sum.last_step), static_cast<long long>(sum.events), 100 * sum.overlap(),
      static_cast<double>(sum.collectives_ns) / 1e6 / steps, static_cast<double>(sum.hidden_ns) / 1e6 / steps);
  text += line;
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
    text +=
        "; " + rank_list(who) +
        (step < 0 ? ": nothing, new since" : ": from step " + std::to_string(step) + " on, what was before is lost");
  }
  const auto gone = began_with - static_cast<int>(ranks.size());
  if (gone > 0)
    text += "; " + std::to_string(gone) + " of " + std::to_string(began_with) +
            " ranks were lost, with what they had recorded";
  if (!dropped.empty())
    text += "; " + rank_list(dropped) + " had more than " + std::to_string(TraceRecorder::kLimit) +
            " events: the last " + std::to_string(sum.dropped) + " are missing";
  return text;
}

}  // namespace troupe
