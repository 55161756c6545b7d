#include "launch/loop/run_log.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <utility>

#include "launch/launcher/failure_report.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/loop/slow_settings.hpp"
#include "launch/observe/event_file.hpp"
#include "launch/observe/git_commit.hpp"
#include "launch/observe/json_lines.hpp"
#include "launch/observe/metrics_page.hpp"
#include "launch/observe/mlflow_sink.hpp"
#include "launch/observe/run_info.hpp"
#include "launch/observe/run_warnings.hpp"
#include "launch/run/run_file.hpp"
#include "launch/run/run_identity.hpp"
#include "launch/run/run_lock.hpp"
#include "tensor_io/files/file_layer.hpp"
#include "tensor_io/memory/memory_shortage.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr const char* kLastLines = "last_lines";
constexpr int kKeptLines = 8;
constexpr std::chrono::milliseconds kPatience = 5s;           // at the end of a run, for what is on its way
constexpr std::chrono::milliseconds kPatienceToFail = 500ms;  // the other ranks wait for the news

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

double in_gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

double max_resident_gib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

std::string caf_version() {
  return std::to_string(CAF_MAJOR_VERSION) + "." + std::to_string(CAF_MINOR_VERSION) + "." +
         std::to_string(CAF_PATCH_VERSION);
}

std::string commit_of_program() {
  std::error_code failure;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", failure);
  auto commit = failure ? std::string() : git_commit(program.parent_path().string());
  return commit.empty() ? git_commit(".") : commit;
}

RunRecord run_record_of(Rank& rank) {
  const auto& options = system_of(rank).options();
  RunRecord record;
  record.run_id = options.run_id;
  record.job_id = options.job_id;
  record.build_id = options.build_id;
  record.backend = rank.communicator().backend();
  record.strategy = rank.config().strategy;
  record.command = own_command();
  record.git_commit = commit_of_program();
  record.versions = {
      {"troupe", TROUPE_VERSION}, {"libtorch", TORCH_VERSION}, {"caf", caf_version()}, {"compiler", __VERSION__}};
  const auto& members = system_of(rank).compute().membership().members;
  for (std::size_t r = 0; r < members.size(); ++r)
    record.ranks.push_back({static_cast<int>(r), members[r].process.slot, members[r].host});
  return record;
}

// Folders that were not given are this run's alone.
Config config_for_another_run(Config config) {
  const auto source = config.sources.find("run_dir");
  if (source == config.sources.end() || source->second == "TROUPE_RUN_DIR") {
    config.run_dir = kNewRunFolder;
    config.sources.erase("run_dir");
  }
  if (!config.sources.contains("checkpoint_dir")) config.checkpoint_dir = kNewRunFolder;
  return config;
}

MlflowRunInfo mlflow_run_of(Rank& rank) {
  const auto& config = rank.config();
  MlflowRunInfo info;
  info.uri = config.mlflow_uri;
  info.experiment = config.mlflow_experiment;
  info.run_name = std::filesystem::path(config.run_dir).filename().string();
  info.run_id = system_of(rank).options().run_id;
  info.tags = {{"mlflow.source.name", own_command().front()}, {"troupe.version", TROUPE_VERSION}};
  info.parameters = config_texts(config);
  if (!config.run_dir.empty()) info.kept = config.run_dir + "/metrics.jsonl";
  return info;
}

}  // namespace

RunLog::RunLog(Rank& rank, Voice voice)
    : rank_(rank),
      voice_(voice),
      console_(std::make_shared<Console>(voice == Voice::console && rank.config().progress_bar)) {
  if (!rank.is_main() || system_of(rank).compute().membership().generation != 1) return;
  begin_run();
  if (system_of(rank).options().begins) warn_of_slow_settings();
}

void RunLog::open_page() {
  const auto& options = system_of(rank_).options();
  const std::filesystem::path folder = rank_.config().run_dir + "/";
  const auto page = std::make_shared<MetricsPage>(static_cast<std::uint16_t>(rank_.config().metrics_port),
                                                  options.job_id, options.page_token, ::geteuid(),
                                                  folder.lexically_normal().parent_path().filename().string());
  if (voice_ == Voice::console) console_->line("live page: " + page->address());
  page_ = page;
}

void RunLog::warn_of_slow_settings() {
  const auto& members = system_of(rank_).compute().membership().members;
  const auto& host = members[static_cast<std::size_t>(rank_.rank())].host;
  const auto here = std::count_if(members.begin(), members.end(), [&](const auto& m) { return m.host == host; });
  const bool launched = std::getenv("RANK") != nullptr;  // else the others are threads of this process, for tests
  for (const auto& line : slow_lines(slow_facts(rank_.config(), rank_.device(), launched ? static_cast<int>(here) : 1)))
    console_->warn(line);
}

void RunLog::begin_run() {
  const auto& config = rank_.config();
  if (!config.mlflow_uri.empty()) MlflowClient::server_of(config.mlflow_uri);
  if (config.metrics_port > 0) open_page();
  if (config.run_dir.empty()) return;
  const auto& options = system_of(rank_).options();
  if (options.run_lock) options.run_lock->take();
  if ((config.resume.empty() || config.validate_only) && options.begins) refuse_records_in(config.run_dir);
  std::error_code failure;
  refuse_foreign_link(config.run_dir);
  std::filesystem::create_directories(config.run_dir, failure);
  if (failure) throw Error(ErrorCode::io, config.run_dir, failure.message(), "choose another --run_dir");
  for (const auto& [name, text] :
       {std::pair<std::string, std::string>{"config.toml", config_to_toml(config_for_another_run(config))},
        std::pair<std::string, std::string>{"run.json",
                                            to_json(run_record_of(rank_), config, read_run_json(config.run_dir))}}) {
    try {
      replace_text(config.run_dir + "/" + name, text);
    } catch (const Error& error) {
      warn(config.run_dir + "/" + name + " cannot be written: " + error.report().cause + "; training goes on");
    }
  }
}

std::vector<std::shared_ptr<MetricSink>> RunLog::open_sinks() {
  const auto& config = rank_.config();
  std::vector<std::shared_ptr<MetricSink>> sinks;
  if (!config.run_dir.empty()) {
    sinks.push_back(std::make_shared<JsonLines>(config.run_dir + "/metrics.jsonl"));
    if (config.tensorboard) sinks.push_back(std::make_shared<EventFile>(config.run_dir + "/tensorboard"));
  }
  // This process may have become rank 0 in the course of the job, which is not to fail for a port or an address.
  const auto open = [&](const auto& make) {
    try {
      make();
    } catch (const Error& error) {
      warn(error.what());
    }
  };
  if (!page_ && config.metrics_port > 0) open([&] { open_page(); });
  if (page_) sinks.push_back(page_);
  if (!config.mlflow_uri.empty()) open([&] { sinks.push_back(std::make_shared<MlflowSink>(mlflow_run_of(rank_))); });
  return sinks;
}

bool RunLog::ready() {
  if (!rank_.is_main()) return false;
  if (metrics_) return true;
  MetricsOptions options;
  options.sinks = open_sinks();
  options.generation = system_of(rank_).compute().membership().generation;
  const auto& folder = rank_.config().run_dir;
  if (!folder.empty()) {
    const bool replaced = system_of(rank_).compute().membership().generation > 1;
    options.earlier = [path = folder + "/metrics.jsonl", replaced,
                       known = replaced ? system_of(rank_).compute().notes()[kLastLines] : std::string()] {
      const auto tail = mend_and_read_tail(path);
      return replaced ? earlier_records(known, tail) : EarlierRecords();
    };
  }
  if (voice_ == Voice::console) listen(options);
  options.warn = [console = console_](const std::string& text) { console->warn("metrics: " + text); };
  options.judge = [warnings = std::make_shared<RunWarnings>()](const MetricRecord& record) {
    return warnings->add(record);
  };
  options.on_warning = [console = console_](const std::string& text) { console->warn(text); };
  options.trace = system_of(rank_).options().trace;
  metrics_ = system_of(rank_).system().spawn<caf::detached>(metrics, options);
  return true;
}

void RunLog::listen(MetricsOptions& options) {
  options.on_report = [console = console_](const MetricsReport& report) { console->show(report); };
  options.on_validation = [console = console_](const ValidationReport& report) { console->show(report); };
  options.on_line = [console = console_](const std::string& text) { console->line(text); };
}

RunLog::~RunLog() {
  if (!metrics_) return;
  const bool failed = std::uncaught_exceptions() > 0 || !error_.empty();
  const std::chrono::milliseconds patience = failed ? kPatienceToFail : kPatience;
  auto& mailbox = system_of(rank_).compute().mailbox().actor();
  mailbox.request(metrics_, patience + 2s, FinishMetrics{patience, failed, error_, rank_.stop_signal()})
      .receive([](bool) {}, [](caf::error&) {});
  end_metrics(caf::exit_reason::user_shutdown, patience);
}

void RunLog::give_up() {
  if (metrics_) end_metrics(caf::exit_reason::kill, kPatienceToFail);
}

// What it writes now must be in the file before another rank 0 reads that.
void RunLog::end_metrics(caf::exit_reason reason, std::chrono::milliseconds patience) {
  caf::scoped_actor waiter(system_of(rank_).system());
  waiter->monitor(metrics_);
  caf::anon_send_exit(std::exchange(metrics_, MetricsActor()), reason);
  waiter->receive([](const caf::down_msg&) {}, caf::after(patience) >> [] {});
}

void RunLog::send(ValidationReport report) {
  report.wall_time = now();
  if (ready()) caf::anon_send(metrics_, report);
  keep(record_of(report));
}

void RunLog::send(MetricsReport report) {
  report.wall_time = now();
  report.max_resident_gib = max_resident_gib();
  const auto peak = device_memory_peak(system_of(rank_).options().device);
  report.max_active_gib = in_gib(peak.active);
  report.max_reserved_gib = in_gib(peak.reserved);
  report.sent_ns = steady_now_ns();
  if (ready()) caf::anon_send(metrics_, report);
  if (report.log) keep(record_of(report));
}

void RunLog::keep(const MetricRecord& record) {
  if (rank_.config().run_dir.empty() || !system_of(rank_).options().reconnect) return;
  auto& lines = system_of(rank_).compute().notes()[kLastLines];
  lines += to_json(record) + "\n";
  if (std::count(lines.begin(), lines.end(), '\n') > kKeptLines) lines.erase(0, lines.find('\n') + 1);
}

void RunLog::note(const std::string& event, const std::string& line, std::int64_t epoch) {
  this->line(line);
  if (!metrics_) return;
  MetricRecord record;
  record.kind = MetricRecord::Kind::event;
  record.step = record.steps_from = system_of(rank_).compute().steps_done();
  record.epoch = epoch;
  record.wall_time = now();
  record.event = event;
  record.text = line;
  caf::anon_send(metrics_, std::move(record));
}

void RunLog::note_if_skipped(const StepReport& report, std::int64_t epoch) {
  if (!report.committed)
    note("skipped", "step " + std::to_string(report.measured_step) + " skipped: " + report.reason, epoch);
}

void RunLog::note_membership(std::int64_t epoch) {
  const auto& compute = system_of(rank_).compute();
  const auto& membership = compute.membership();
  if (membership.generation == noted_) return;
  noted_ = membership.generation;
  if (!ready()) return;
  MetricRecord record;
  record.kind = MetricRecord::Kind::event;
  record.step = record.steps_from = compute.steps_done();
  record.epoch = epoch;
  record.wall_time = now();
  record.event = "membership";
  record.text = membership.reason;
  record.generation = membership.generation;
  record.stalled_ms = compute.last_recovery().ms;
  record.cause = compute.last_recovery().cause;
  for (std::size_t r = 0; r < membership.members.size(); ++r) {
    const auto& member = membership.members[r];
    record.members.push_back({static_cast<int>(r), member.process.slot, member.host, member.newcomer});
  }
  caf::anon_send(metrics_, std::move(record));
}

void RunLog::line(const std::string& text) {
  if (ready()) caf::anon_send(metrics_, ConsoleLine{text});
}

}  // namespace troupe
