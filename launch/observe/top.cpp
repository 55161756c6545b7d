#include "launch/observe/top.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "launch/config/command_flags.hpp"
#include "launch/observe/bounded_answer.hpp"
#include "launch/observe/run_folder.hpp"
#include "launch/observe/top_screen.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/terminal.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

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
    if (once || follower.ended() || (!records.empty() && records.back().kind == MetricRecord::Kind::end)) return 0;
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
