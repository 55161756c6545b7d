// What a run's metrics cost, in processor time, which a busy machine changes little: bench_observe [FOLDER]
// What a trace costs: bench_observe trace [FOLDER] (trace_cost.hpp)
//
// One JSON object: ns on the compute thread for each step, ns there for each log interval, µs on the metrics actor's
// thread for each log interval by sink; µs of all the job's threads for what an open live page asks once a second. All
// are means over many records, the least of seven rounds. Of a job of eight ranks.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "actors/metrics/metrics.hpp"
#include "bench/trace_cost.hpp"
#include "launch/network/actor_system.hpp"
#include "launch/observe/event_file.hpp"
#include "launch/observe/json_lines.hpp"
#include "launch/observe/live_page.hpp"
#include "launch/observe/metrics_page.hpp"

namespace bench_observe {

using namespace troupe;

namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double thread_seconds() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }
double other_threads_seconds() { return seconds_of(CLOCK_PROCESS_CPUTIME_ID) - thread_seconds(); }

// Seconds of this thread's processor time for one call, or of another clock's.
double cost(int calls, const std::function<void()>& work, const std::function<double()>& clock = thread_seconds) {
  std::vector<double> rounds;
  for (int round = 0; round < 7; ++round) {
    const double begun = clock();
    for (int i = 0; i < calls; ++i) work();
    rounds.push_back((clock() - begun) / calls);
  }
  return *std::min_element(rounds.begin(), rounds.end());
}

}  // namespace

int run(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "trace") {
    const std::string below =
        argc > 2 ? argv[2] : (std::filesystem::temp_directory_path() / "troupe-bench-trace").string();
    std::printf("%s\n", trace_costs(below).dump().c_str());
    return 0;
  }
  if (argc > 3 && std::string(argv[1]) == "trace-run") {
    std::printf("%s\n", trace_run(std::stoul(argv[2]), argv[3]).dump().c_str());
    return 0;
  }
  const std::string folder =
      argc > 1 ? argv[1] : (std::filesystem::temp_directory_path() / "troupe-bench-observe").string();
  std::filesystem::remove_all(folder);
  StepReport step;
  step.loss = step.max_loss = 1.5;
  step.samples = 64;
  step.step_ms = 30;
  step.data_ms = 0.1;
  step.own.assign(8, {1, 10, 20});
  MetricsReport report;
  const double per_step = cost(1'000'000, [&] {  // the loop has two windows: the line's and the bar's
    report.window.add(step);
    report.window.add(step);
  });
  ActorSystemConfig config(false);
  caf::actor_system system(config);
  double send = 0;
  {
    const auto actor = system.spawn<caf::detached>(metrics, MetricsOptions{});
    send = cost(20'000, [&] { caf::anon_send(actor, report); });
    caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  }
  system.await_all_actors_done();
  JsonLines lines(folder + "/metrics.jsonl");
  EventFile events(folder + "/tensorboard");
  int port = 0;  // a free one
  std::unique_ptr<MetricsPage> open;
  for (port = 20'000; !open; ++port) {
    try {
      open = std::make_unique<MetricsPage>(static_cast<std::uint16_t>(port), "bench");
    } catch (const Error&) {
      continue;
    }
    break;
  }
  auto& page = *open;
  LiveRecords live("bench");
  const double make = cost(20'000, [&] { (void)record_of(report); });
  const auto record = record_of(report);
  const double json = cost(5'000, [&] { lines.write(record); });
  const double event = cost(5'000, [&] { events.write(record); });
  const double both = cost(5'000, [&] { page.write(record); });
  const double keep = cost(5'000, [&] { live.add(record); });
  // A page that is open asks once a second for what is new: 31 records where every step of 32 ms is logged.
  httplib::Client client("127.0.0.1", port);
  const auto next =
      nlohmann::json::parse(page.records(std::numeric_limits<std::int64_t>::max()))["next"].get<std::int64_t>();
  const std::string path = "/records?after=" + std::to_string(next - 31);
  bool answered = true;
  const double ask = cost(
      200, [&] { answered = client.Get(path) && answered; }, other_threads_seconds);
  const double scrape = cost(500, [&] { (void)page.text(); });
  std::printf(
      "{\"compute_ns_per_step\": %.0f, \"compute_ns_per_interval\": %.0f, \"record_us\": %.2f, \"metrics_jsonl_us\": "
      "%.2f, "
      "\"tensorboard_us\": %.2f, \"prometheus_us\": %.2f, \"scrape_us\": %.1f, \"live_page_us\": %.2f, "
      "\"live_page_ask_us\": %.1f}\n",
      1e9 * per_step, 1e9 * send, 1e6 * make, 1e6 * json, 1e6 * event, 1e6 * (both - keep), 1e6 * scrape, 1e6 * keep,
      1e6 * ask);
  if (!answered) return 1;
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace bench_observe
