#include "launch/observe/top.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <thread>

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "actors/step/logged_values.hpp"
#include "launch/config/command_flags.hpp"
#include "launch/observe/bounded_answer.hpp"
#include "launch/observe/run_folder.hpp"
#include "launch/observe/run_statistics.hpp"
#include "launch/observe/svg_chart.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/terminal.hpp"
#include "launch/process/wrapped_text.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using Kind = MetricRecord::Kind;

constexpr std::size_t kMostOwn = 12;

constexpr const char* kTopHelp =
    "usage: troupe top [RUN | --port N] [--once]\n"
    "\n"
    "Follows a run in a terminal: loss, accuracy, the program's metrics, throughput, exposed communication, data wait, "
    "queues between actors, the "
    "ranks, failures. It reads metrics.jsonl in the folder of the run and does not disturb the job.\n"
    "\n"
    "  RUN         the folder of the run (default: runs/latest)\n"
    "  --port N    the metrics_port of the run on this host or at the end of an ssh -L, if the folder cannot be read\n"
    "  --once      show the run once and end; the default in a pipe\n"
    "\n"
    "exit code: 0, or 65 if the folder holds no run, or 69 if the port does not answer\n"
    "example: troupe top runs/latest\n";

std::string share_text(double value) {
  return std::isfinite(value) ? short_number(std::round(10 * value) / 10) + "%" : "-";
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

const MetricRecord* last_of(const std::vector<MetricRecord>& records, Kind kind) {
  const auto found =
      std::find_if(records.rbegin(), records.rend(), [&](const MetricRecord& r) { return r.kind == kind; });
  return found == records.rend() ? nullptr : &*found;
}

const MetricRecord* membership_of(const std::vector<MetricRecord>& records) {
  const auto found = std::find_if(records.rbegin(), records.rend(),
                                  [](const MetricRecord& r) { return r.kind == Kind::event && r.generation > 0; });
  return found == records.rend() ? nullptr : &*found;
}

using Metric = std::function<double(const MetricRecord&)>;

std::vector<double> recent_values(const std::vector<MetricRecord>& records, const Metric& metric, std::size_t most) {
  std::vector<double> values;
  for (auto record = records.rbegin(); record != records.rend() && values.size() < most; ++record) {
    if (record->kind == Kind::train) values.push_back(metric(*record));
  }
  std::reverse(values.begin(), values.end());
  return values;
}

std::string state_of(const std::vector<MetricRecord>& records, double now) {
  if (records.empty()) return "no record yet: the first comes after log_interval steps";
  const auto& last = records.back();
  if (last.kind != Kind::end)
    return "running, last record " + duration_text(std::max(0.0, now - last.wall_time)) + " ago";
  return end_word(last) + (last.text.empty() ? "" : ": " + displayable(last.text, 200));
}

// Beside each other, as many as fit into a line.
void add_fields(std::vector<std::string>& lines, const std::vector<std::string>& fields, std::size_t columns) {
  std::string line;
  for (const auto& field : fields) {
    if (field.empty()) continue;
    if (!line.empty() && line.size() + 2 + field.size() > columns) lines.push_back(std::exchange(line, "  "));
    line += (line.empty() || line == "  " ? "" : "  ") + field;
  }
  std::istringstream rest(wrapped({}, 0, line, columns));
  while (std::getline(rest, line)) lines.push_back(line);
}

// 0 everywhere if the program counts no samples that are right.
bool counts_accuracy(const std::vector<MetricRecord>& records) {
  return std::any_of(records.begin(), records.end(), [](const MetricRecord& r) { return r.value("accuracy") > 0; });
}

double own_value(const MetricRecord& record, const std::string& name) {
  const auto found =
      std::find_if(record.own.begin(), record.own.end(), [&](const auto& entry) { return entry.first == name; });
  return found == record.own.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

std::string step_text(const MetricRecord& r) {
  const double all = r.value("total_steps");
  return "step " + std::to_string(r.step) +
         (all > 0 && all < 1e15 ? " of " + std::to_string(static_cast<std::int64_t>(all)) : std::string());
}

void add_metrics(std::vector<std::string>& lines, const std::vector<MetricRecord>& records, const MetricRecord& r,
                 std::size_t columns) {
  const std::size_t width = columns > 54 ? columns - 34 : 20;
  lines.push_back(padded("metric", 24) + padded("now", 10) + "history ('_' low, '#' high)");
  const auto row = [&](const char* name, const char* unit, const Metric& metric) {
    lines.push_back(padded(name, 24) + padded(short_number(metric(r)) + unit, 10) +
                    spark_line(recent_values(records, metric, width), width));
  };
  const auto of = [](const char* name) { return [name](const MetricRecord& record) { return record.value(name); }; };
  const auto or_none = [](double value) { return std::isfinite(value) ? value : 0; };
  const auto tenth = [](double value) { return std::round(10 * value) / 10; };
  row("loss", "", of("loss_metrics/global_avg_loss"));
  if (counts_accuracy(records))
    row("accuracy", "%", [&](const MetricRecord& record) { return tenth(100 * record.value("accuracy")); });
  row("learning rate", "", of("lr"));
  row("samples/s", "", of("throughput(samples/s)"));
  row("exposed communication", "%", [&](const MetricRecord& record) {
    return tenth(record.value("time_metrics/exposed_communication(%)") +
                 or_none(record.value("time_metrics/collectives(%)")));
  });
  row("data wait", "%",
      [&](const MetricRecord& record) { return tenth(record.value("time_metrics/data_loading(%)")); });
  for (std::size_t i = 0; i < r.own.size() && i < kMostOwn; ++i) {
    const auto& name = r.own[i].first;
    const auto shown = displayable(name, LoggedValues::kLongestName);
    row((shown.size() < 24 ? shown : shown.substr(0, 20) + "..").c_str(), "",
        [&](const MetricRecord& record) { return own_value(record, name); });
  }
  if (r.own.size() > kMostOwn)
    lines.push_back("and " + std::to_string(r.own.size() - kMostOwn) + " more metrics, in metrics.jsonl");
  add_fields(lines, {"good: loss falls", "communication below 30% of a step", "data wait below 10%"}, columns);
}

void add_queues(std::vector<std::string>& lines, const MetricRecord& r) {
  const double step_ms = 1000 * r.value("time_metrics/end_to_end(s)");
  lines.push_back(padded("queue", 24) + padded("mean length", 16) + "waits, of a step");
  const auto queue = [&](const char* name, const std::string& length, const char* who, double wait) {
    lines.push_back(padded(name, 24) + padded(length, 16) + padded(who, 8) + share_text(wait));
  };
  queue("data loader -> compute", short_number(r.value("queue/loader(batches)")) + " batches", "compute",
        r.value("time_metrics/data_loading(%)"));
  queue("compute -> reducer", short_number(r.value("queue/reducer(buckets)")) + " buckets", "reducer",
        100 - 100 * r.value("time_metrics/reduce(ms)") / step_ms);
  queue("reducer -> compute", "", "compute", r.value("time_metrics/exposed_communication(%)"));
  queue("compute -> checkpointer", "", "compute", r.value("time_metrics/checkpoint(%)"));
}

void add_members(std::vector<std::string>& lines, const MetricRecord& membership, const MetricRecord* train,
                 std::size_t most) {
  lines.push_back("membership " + std::to_string(membership.generation) + ": " + displayable(membership.text, 200));
  std::size_t shown = 0, width = 6;
  for (const auto& place : membership.members) width = std::max(width, displayable(place.host, 24).size() + 2);
  lines.push_back(padded("  rank", 8) + padded("host", width) + "own work of a step: equal is good");
  for (const auto& place : membership.members) {
    if (shown++ == most) {
      lines.push_back("  and " + std::to_string(membership.members.size() - most) + " more ranks");
      break;
    }
    std::string line = padded("  " + std::to_string(place.rank), 8) + padded(displayable(place.host, 24), width);
    if (train != nullptr && train->ranks.size() == membership.members.size()) {
      const auto& own = train->ranks[static_cast<std::size_t>(place.rank) % train->ranks.size()];
      line += padded(short_number(static_cast<double>(own.total_ms())) + " ms", 12);
    }
    if (place.newcomer) line += "new ";
    if (train != nullptr) {
      for (const auto& slow : train->stragglers) {
        if (slow.rank == place.rank) line += "slow in " + displayable(slow.section, 20);
      }
    }
    lines.push_back(line);
  }
}

// Newest first, each as a whole, in at most `rows` rows.
void add_events(std::vector<std::string>& lines, const std::vector<MetricRecord>& records, std::size_t columns,
                std::size_t rows, double now) {
  lines.emplace_back("events, newest first");
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->kind != Kind::event) continue;
    std::string text = displayable(record->text, 300);
    if (!record->cause.empty()) text += "; cause: " + displayable(record->cause, 200);
    if (record->stalled_ms > 0) text += "; the job stood still for " + duration_text(record->stalled_ms / 1000);
    std::istringstream event(wrapped("  " + duration_text(std::max(0.0, now - record->wall_time)) + " ago", 18,
                                     "step " + std::to_string(record->step) + "  " + text, columns));
    for (std::string line; std::getline(event, line);) {
      if (rows-- == 0) return;
      lines.push_back(line);
    }
  }
}

/// Asks the live page's server for what is new, as the page does.
class PageFollower {
 public:
  explicit PageFollower(std::uint16_t port) : port_(port), client_("127.0.0.1", port) {
    client_.set_connection_timeout(kPatience);
    client_.set_read_timeout(kPatience);
  }
  const std::vector<MetricRecord>& records() {
    httplib::Request request;
    request.method = "GET";
    request.path = "/records?after=" + std::to_string(next_);
    const auto answer = bounded_answer(client_, request, kMostBytes);
    if (!answer &&
        answer.error() !=
            httplib::Error::Canceled) {  // rank 0 is being replaced, or the run is over and took its page along
      if (asked_) return ++unanswered_, lines_.records();
      throw Error(ErrorCode::unavailable, place(), "no answer there",
                  "start the run with --metrics_port N, and run this on the host of rank 0");
    }
    const auto json =
        answer && answer->status == 200 ? nlohmann::json::parse(answer->body, nullptr, false) : nlohmann::json();
    if (!json.is_object() || !json.contains("records") || !json["records"].is_array() || !json.contains("next") ||
        !json["next"].is_number_integer() || !json.contains("life"))
      throw Error(ErrorCode::bad_data, place(), "the server there is not the live page of a run",
                  "give the run's --metrics_port");
    asked_ = true;
    unanswered_ = 0;
    if (json["life"] != life_) {  // another process is rank 0, with records of its own
      const bool again = !life_.is_null();
      life_ = json["life"];
      if (again && next_ > 0) {
        next_ = 0;
        return records();
      }
    }
    next_ = json["next"].get<std::int64_t>();
    for (const auto& record : json["records"]) lines_.add(record.dump());
    return json.value("more", false) ? records() : lines_.records();
  }
  bool foreign() const { return false; }
  bool ended() const { return unanswered_ >= kUnanswered; }
  /// What is to be said below the records, or nothing.
  std::string note() const {
    const auto times = std::to_string(unanswered_) + (unanswered_ == 1 ? " request" : " requests in a row");
    if (ended()) return "the run's page is gone: no answer to " + times + "; its last state is above";
    return unanswered_ > 0
               ? "no answer to " + times + "; trying again, " + std::to_string(kUnanswered) + " times in all"
               : "";
  }
  std::string place() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  static constexpr std::chrono::seconds kPatience{5};
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  static constexpr int kUnanswered = 10;  // a second apart: a rank 0 is replaced in less
  const std::uint16_t port_;
  httplib::Client client_;
  RunLines lines_;
  nlohmann::json life_;
  std::int64_t next_ = 0;
  bool asked_ = false;
  int unanswered_ = 0;  // since the last answer
};

std::uint16_t port_of(const std::string& text) {
  std::uint16_t port = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), port);
  if (result.ec == std::errc() && result.ptr == text.data() + text.size() && port > 0) return port;
  throw Error(ErrorCode::usage, "--port", "'" + displayable(text) + "' is not a port, 1 to 65535",
              "give the run's --metrics_port");
}

// Reads what was appended since the last time; a file that became shorter is another.
class Follower {
 public:
  explicit Follower(std::string path) : path_(std::move(path)) {}
  const std::vector<MetricRecord>& records() {
    std::error_code failure;
    if (!std::filesystem::is_regular_file(path_, failure))
      throw Error(ErrorCode::bad_data, displayable(path_, 200), "there is no such file, so this is not a run's folder",
                  "give the --run_dir of a run, such as runs/latest; it is there once the run has begun");
    const auto size = std::filesystem::file_size(path_, failure);
    if (!failure && size < at_) {
      lines_ = {};
      at_ = 0;
    }
    std::ifstream file(path_);
    file.seekg(static_cast<std::streamoff>(at_));
    for (std::string line; std::getline(file, line) && !file.eof();) {  // half a line comes again, whole
      lines_.add(line);
      at_ += line.size() + 1;
    }
    return lines_.records();
  }
  bool foreign() const { return lines_.records().empty() && lines_.bad_lines() > 0; }
  bool ended() const { return false; }
  std::string note() const { return {}; }

 private:
  const std::string path_;
  RunLines lines_;
  std::uintmax_t at_ = 0;
};

std::size_t terminal_rows() {
  winsize window{};
  return ::ioctl(1, TIOCGWINSZ, &window) == 0 && window.ws_row > 4 ? window.ws_row : 24;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

std::string spark_line(const std::vector<double>& values, std::size_t width) {
  constexpr std::string_view kLevels = "_.-:=+*#";
  const auto first = values.end() - static_cast<std::ptrdiff_t>(std::min(width, values.size()));
  double low = INFINITY, high = -INFINITY;
  for (auto value = first; value != values.end(); ++value) {
    if (!std::isfinite(*value)) continue;
    low = std::min(low, *value);
    high = std::max(high, *value);
  }
  std::string line;
  for (auto value = first; value != values.end(); ++value) {
    const double at = high > low ? (*value - low) / (high - low) : 0;
    line += std::isfinite(*value) && std::isfinite(at)
                ? kLevels[static_cast<std::size_t>(std::lround(at * (kLevels.size() - 1)))]
                : ' ';
  }
  return line;
}

std::string top_screen(const std::string& folder, const std::vector<MetricRecord>& records, std::size_t columns,
                       std::size_t rows, double now) {
  std::vector<std::string> lines;
  add_fields(lines, {"troupe top", displayable(folder, 100), state_of(records, now)}, columns);
  const auto* train = last_of(records, Kind::train);
  const auto* validation = last_of(records, Kind::validation);
  if (train != nullptr) {
    const auto& r = *train;
    add_fields(lines,
               {step_text(r),
                records.back().kind != Kind::end && r.value("time_left(s)") >= 0
                    ? "time left " + duration_text(r.value("time_left(s)"))
                    : std::string(),
                "epoch " + std::to_string(r.epoch + 1), "ranks " + short_number(r.value("world_size")),
                "time of a step " + duration_text(r.value("time_metrics/end_to_end(s)")),
                "idle " + share_text(r.value("time_metrics/idle(%)")),
                "overlap " + share_text(r.value("time_metrics/overlap(%)")),
                r.value("memory/max_resident(GiB)") > 0
                    ? "memory of rank 0 " + short_number(r.value("memory/max_resident(GiB)")) + " GiB"
                    : std::string(),
                r.value("memory/max_active(GiB)") > 0
                    ? "on its device " + short_number(r.value("memory/max_active(GiB)")) + " GiB"
                    : std::string(),
                validation == nullptr ? "no validation yet"
                                      : "held-out loss " + short_number(validation->value("validation_metrics/loss")),
                validation != nullptr && validation->value("validation_metrics/accuracy") > 0
                    ? "held-out accuracy " + share_text(100 * validation->value("validation_metrics/accuracy"))
                    : std::string()},
               columns);
    lines.emplace_back();
    add_metrics(lines, records, r, columns);
    lines.emplace_back();
    add_queues(lines, r);
    lines.emplace_back();
  }
  const auto left = [&] { return rows > lines.size() + 1 ? rows - lines.size() - 1 : 1; };
  if (const auto* membership = membership_of(records))
    add_members(lines, *membership, train, std::max<std::size_t>(2, left() / 2));
  const bool happened = last_of(records, Kind::event) != nullptr;
  if (happened && left() > 2) {
    lines.emplace_back();
    add_events(lines, records, columns, left() - 1, now);
  }
  std::string screen;
  for (auto& line : lines) screen += line.substr(0, columns) + "\n";
  return screen;
}

namespace {

template <class Follow>
int follow(Follow& follower, const std::string& run, bool once) {
  for (;;) {
    const auto& records = follower.records();
    if (follower.foreign())
      throw Error(ErrorCode::bad_data, displayable(run, 200) + "/metrics.jsonl", "no line of it is a record");
    const auto screen = top_screen(run, records, terminal_columns(1), once ? 1000 : terminal_rows(), now());
    std::fputs(once ? "" : "\x1b[H\x1b[J", stdout);
    std::fputs(screen.c_str(), stdout);
    if (const auto note = follower.note(); !note.empty()) std::fputs((note + "\n").c_str(), stdout);
    std::fflush(stdout);
    if (once || follower.ended() || (!records.empty() && records.back().kind == Kind::end)) return 0;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

}  // namespace

int top_command(const std::vector<std::string>& words) {
  std::uint16_t port = 0;
  bool once = !shows_bars(1), help = false;
  const auto read_port = [&port](const std::string&, const std::string& text) { port = port_of(text); };
  const auto runs =
      read_words(words, {{"--once", &once}, {"--port", read_port}, {"--help", &help}, {"-h", &help}}, "troupe top");
  if (help) return print_help(kTopHelp), 0;
  if (runs.size() > 1 || (runs.size() == 1 && runs[0].empty()))
    throw Error(ErrorCode::usage, "troupe top", "it takes one RUN", "see troupe top --help");
  if (port > 0 && !runs.empty())
    throw Error(ErrorCode::usage, "troupe top", "it takes a RUN or a --port", "see troupe top --help");
  if (port > 0) {
    PageFollower follower(port);
    return follow(follower, follower.place(), once);
  }
  const std::string run = runs.empty() ? "runs/latest" : runs[0];
  Follower follower(run + "/metrics.jsonl");
  return follow(follower, run, once);
}

}  // namespace troupe
