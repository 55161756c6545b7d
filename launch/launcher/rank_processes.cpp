#include "launch/launcher/rank_processes.hpp"

#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "launch/process/still_saving.hpp"
#include "launch/process/terminal.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

// Others may read a log: the page's token is for the terminal.
std::string for_log(std::string_view text) {
  constexpr std::string_view kToken = "?token=";
  std::string line(text);
  if (const auto at = line.find(kToken); at != line.npos) {
    const auto first = at + kToken.size();
    const auto end = std::min(line.find_first_not_of("0123456789abcdef", first), line.size());
    line.replace(first, end - first, "...");
  }
  return line;
}

}  // namespace

RankProcesses::RankProcesses(RankProcessOptions options, Exited exited, std::function<void()> still_saving)
    : options_(std::move(options)), exited_(std::move(exited)), still_saving_(std::move(still_saving)) {
  std::error_code failure;
  refuse_foreign_link(options_.run.folder);
  std::filesystem::create_directories(options_.run.folder, failure);
  if (failure) throw Error(ErrorCode::io, options_.run.folder, failure.message(), "choose another --run-dir");
  const auto add = [&](int number, const char* kind) {
    Slot slot;
    slot.number = number;
    slot.local_rank = static_cast<int>(slots_.size());
    slot.label = kind + std::string(" ") + std::to_string(number);
    slot.log_path = options_.run.folder + "/" + kind + std::to_string(number) + ".log";
    const int fd = open_plain(slot.log_path, O_WRONLY | O_CREAT | O_APPEND);
    if (fd >= 0) slot.log.reset(::fdopen(fd, "a"));
    if (!slot.log) throw Error(ErrorCode::io, slot.log_path, io_cause(errno), "choose another --run-dir");
    slots_.emplace(number, std::move(slot));
  };
  for (const int number : options_.slots) add(number, "rank");
  for (const int number : options_.spares) add(number, "spare");
}

void RankProcesses::start_all() {
  for (auto& [number, slot] : slots_) start({number, random_incarnation()}, 0);
}

void RankProcesses::start(const ProcessId& process, int restarts) {
  if (options_.own_keys) options_.own_keys->restore();
  auto& slot = slots_.at(process.slot);
  slot.process = process;
  slot.killed = false;
  slot.out = OutputLines();
  slot.err = OutputLines();
  ChildProcess::Options child;
  child.arguments = options_.command;
  child.arguments[0] = options_.program;
  char incarnation[17];
  std::snprintf(incarnation, sizeof incarnation, "%016llx", static_cast<unsigned long long>(process.incarnation));
  const auto n = std::to_string(options_.world_size), id = std::to_string(process.slot),
             local = std::to_string(slot.local_rank), local_n = std::to_string(options_.slots.size()),
             lives = std::to_string(options_.starts_over + restarts);
  child.environment = {
      {"RANK", id},
      {"LOCAL_RANK", local},
      {"WORLD_SIZE", n},
      {"LOCAL_WORLD_SIZE", local_n},
      {"GROUP_RANK", std::to_string(options_.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(options_.nodes)},
      {"ROLE_RANK", id},
      {"ROLE_WORLD_SIZE", n},
      {"MASTER_ADDR", options_.master_addr},
      {"MASTER_PORT", std::to_string(options_.coordinator_port + 1)},
      {"TORCHELASTIC_RESTART_COUNT", lives},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", options_.run.job_id},
      {"TROUPE_COORDINATOR", options_.coordinator_host + ":" + std::to_string(options_.coordinator_port)},
      {"TROUPE_JOB_ID", options_.run.job_id},
      {"TROUPE_NODE", options_.host},
      {"TROUPE_ADDRESS", options_.address},
      {"TROUPE_SLOT", id},
      {"TROUPE_INCARNATION", incarnation},
      {"TROUPE_RESTARTS", lives},
      {"TROUPE_SPARE", process.slot >= options_.world_size ? "1" : "0"},
      {"TROUPE_RECOVERY", options_.recovery ? "1" : "0"},
      {"TROUPE_START_OVER", options_.starts_over > 0 ? "1" : "0"},
      {"TROUPE_RUN", options_.run.run_id},
      {"TROUPE_CHECKPOINT", options_.run.checkpoint},
      {"TROUPE_RUN_DIR", options_.run.folder}};
  if (std::getenv("OMP_NUM_THREADS") == nullptr) child.environment["OMP_NUM_THREADS"] = "1";  // ranks share the cores
  if (!options_.keys.empty()) child.environment["TROUPE_KEYS"] = options_.keys;
  if (options_.terminal || options_.bar_columns > 0) {
    const auto columns = options_.terminal ? terminal_columns(1) : static_cast<std::size_t>(options_.bar_columns);
    const auto marker = slot.label.size() + 3;
    child.environment["TROUPE_PROGRESS"] = "bar";
    child.environment["COLUMNS"] = std::to_string(columns > marker ? columns - marker : columns);
  }
  slot.child = std::make_unique<ChildProcess>(child);
  std::erase_if(failures_, [&](const Ended& ended) { return ended.slot == slot.number; });
}

void RankProcesses::kill(const ProcessId& process) {
  const auto found = slots_.find(process.slot);
  if (found == slots_.end() || !found->second.child || found->second.process != process) return;
  found->second.killed = true;
  found->second.child->signal(SIGKILL);
}

void RankProcesses::signal_all(int number) {
  for (auto& [id, slot] : slots_) {
    if (!slot.child) continue;
    slot.killed = slot.killed || number == SIGKILL;
    slot.child->signal(number);
  }
}

std::size_t RankProcesses::alive() const {
  std::size_t n = 0;
  for (const auto& [id, slot] : slots_) n += slot.child && !slot.child->ended() ? 1 : 0;
  return n;
}

std::size_t RankProcesses::open_pipes() const {
  std::size_t n = 0;
  for (const auto& [id, slot] : slots_) {
    if (slot.child) n += (slot.child->stdout_fd() >= 0 ? 1 : 0) + (slot.child->stderr_fd() >= 0 ? 1 : 0);
  }
  return n;
}

std::vector<ProcessId> RankProcesses::running() const {
  std::vector<ProcessId> running;
  for (const auto& [id, slot] : slots_) {
    if (slot.child && !slot.child->ended()) running.push_back(slot.process);
  }
  return running;
}

void RankProcesses::add_fds(std::vector<pollfd>& fds) const {
  for (const auto& [id, slot] : slots_) {
    if (!slot.child) continue;
    if (slot.child->stdout_fd() >= 0) fds.push_back({slot.child->stdout_fd(), POLLIN, 0});
    if (slot.child->stderr_fd() >= 0) fds.push_back({slot.child->stderr_fd(), POLLIN, 0});
  }
}

void RankProcesses::step() {
  for (auto& [id, slot] : slots_) {
    if (slot.child) drain(slot);
  }
  for (auto& [id, slot] : slots_) {
    if (!slot.child || slot.child->ended()) continue;
    const auto status = slot.child->poll_exit();
    if (!status) continue;
    drain(slot);
    if (*status != 0) failures_.push_back({slot.number, *status, slot.killed, slot.log_path, slot.last_line});
    exited_(slot.process, *status);
  }
}

void RankProcesses::drain(Slot& slot) {
  drain(slot, slot.child->stdout_fd(), slot.out, 1);
  drain(slot, slot.child->stderr_fd(), slot.err, 2);
}

void RankProcesses::drain(Slot& slot, int fd, OutputLines& lines, int target) {
  if (fd < 0) return;
  const auto show = [&](std::string_view text, bool overwrite) { this->show(slot, text, overwrite, target); };
  if (!lines.drain(fd, show)) target == 1 ? slot.child->close_stdout() : slot.child->close_stderr();
}

void RankProcesses::show(Slot& slot, std::string_view text, bool overwrite, int target) {
  if (text == kStillSaving) return still_saving_();
  const int length = static_cast<int>(text.size());
  if (overwrite && options_.terminal && target == 1) {
    const auto bar = "[" + slot.label + "] " + std::string(text);
    const auto shown = bar.substr(0, terminal_columns(1) - 1);  // it may have become narrower
    std::fprintf(stdout, "%s%s", kClearLine, tinted(shown, 1).c_str());
    std::fflush(stdout);
    bar_shown_ = true;
    return;
  }
  if (overwrite && options_.bar_columns > 0 && target == 1) {
    std::fprintf(stdout, "[%s] %.*s\r", slot.label.c_str(), length, text.data());
    std::fflush(stdout);
    return;
  }
  if (first_words_.is_news(slot.label, text)) {
    clear_bar();
    FILE* file = target == 1 ? stdout : stderr;
    std::fprintf(file, "%s\n", tinted("[" + slot.label + "] " + std::string(text), target).c_str());
    std::fflush(file);
    last_shown_ = text;
  }
  std::fprintf(slot.log.get(), "%s\n", for_log(text).c_str());
  std::fflush(slot.log.get());
  slot.last_line = text;
}

void RankProcesses::clear_bar() {
  if (!bar_shown_) return;
  std::fputs(kClearLine, stdout);
  std::fflush(stdout);
  bar_shown_ = false;
}

}  // namespace troupe
