// What a run's metrics cost, in processor time, which a busy machine changes little: bench_observe [FOLDER]
//
// One JSON object: ns on the compute thread for each step, ns there for each log interval, µs on the metrics actor's thread for each log
// interval by sink. All are means over many records, the least of seven rounds.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "actors/metrics.hpp"
#include "launch/actor_system.hpp"
#include "launch/observe/event_file.hpp"
#include "launch/observe/json_lines.hpp"
#include "launch/observe/metrics_page.hpp"

using namespace troupe;

namespace {

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Seconds of this thread's processor time for one call.
double cost(int calls, const std::function<void()>& work) {
  std::vector<double> rounds;
  for (int round = 0; round < 7; ++round) {
    const double begun = thread_seconds();
    for (int i = 0; i < calls; ++i) work();
    rounds.push_back((thread_seconds() - begun) / calls);
  }
  return *std::min_element(rounds.begin(), rounds.end());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : (std::filesystem::temp_directory_path() / "troupe-bench-observe").string();
  std::filesystem::remove_all(folder);
  StepReport step;
  step.loss = step.max_loss = 1.5;
  step.samples = 64;
  step.step_ms = 30;
  MetricsReport report;
  const double per_step = cost(1'000'000, [&] {  // the loop has two windows: the line's and the bar's
    report.window.add(step, 0.1);
    report.window.add(step, 0.1);
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
  MetricsPage page(0, "bench");
  const double make = cost(20'000, [&] { (void)record_of(report); });
  const auto record = record_of(report);
  const double json = cost(5'000, [&] { lines.write(record); });
  const double event = cost(5'000, [&] { events.write(record); });
  const double gauges = cost(20'000, [&] { page.write(record); });
  const double scrape = cost(500, [&] { (void)page.text(); });
  std::printf(
      "{\"compute_ns_per_step\": %.0f, \"compute_ns_per_interval\": %.0f, \"record_us\": %.2f, \"metrics_jsonl_us\": %.2f, "
      "\"tensorboard_us\": %.2f, \"prometheus_us\": %.2f, \"scrape_us\": %.1f}\n",
      1e9 * per_step, 1e9 * send, 1e6 * make, 1e6 * json, 1e6 * event, 1e6 * gauges, 1e6 * scrape);
  std::filesystem::remove_all(folder);
  return 0;
}
