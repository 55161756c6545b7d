#include "bench/trace_cost.hpp"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "tensor_io/datasets.hpp"
#include "tensor_io/trace.hpp"
#include "troupe/troupe.hpp"

namespace {

constexpr std::int64_t kWidth = 1024;
constexpr int kFirst = 40, kSteps = 40;  // of the window; as many are measured before and after it

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double span_ns() {
  constexpr int kSpans = 20'000, kRounds = 7;
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const double begun = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < kSpans; ++i) const troupe::TraceSpan span("a span of the bench");
    least = std::min(least, (seconds_of(CLOCK_THREAD_CPUTIME_ID) - begun) / kSpans);
  }
  return 1e9 * least;
}

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  for (int layer = 0; layer < 8; ++layer) {
    model->push_back(std::make_shared<troupe::Block<torch::nn::LinearImpl>>(kWidth, kWidth));
    model->push_back(torch::nn::ReLU());
  }
  return model;
}

struct StepCost {
  double off_ms = 0, on_ms = 0;
  double percent() const { return 100 * (on_ms / off_ms - 1); }
};

// The median step of the window and of those before and after it. What opens and closes the window is in neither.
StepCost run(int ranks, bool operators, const std::string& folder) {
  const auto window =
      "steps=" + std::to_string(kFirst) + ":" + std::to_string(kFirst + kSteps) + ",operators=" + (operators ? "on" : "off");
  const auto count = std::to_string(ranks);
  std::vector<const char*> words{
      "bench_observe", "--ranks", count.c_str(),  "--profile", window.c_str(), "--run_dir", folder.c_str(), "--batch_size", "16",
      "--epochs",      "1",       "--save_every", "-1",        "--threads",    "1",         "--optimizer",  "sgd",          "--tensorboard",
      "false"};
  std::vector<double> at;
  const int code = troupe::main(static_cast<int>(words.size()), const_cast<char**>(words.data()), [&](troupe::Rank& rank) {
    auto model = rank.distribute([] { return make_model(); });
    const auto optimizer = rank.make_optimizer(*model);
    const auto input = torch::ones({16 * (2 * kFirst + kSteps), kWidth});
    for (const auto& batch : rank.loader(std::make_shared<troupe::TensorDataset>(input, input))) {
      if (rank.is_main()) at.push_back(seconds_of(CLOCK_PROCESS_CPUTIME_ID));
      rank.backward(torch::mse_loss(model->forward(batch.input), batch.target));
      rank.step(*optimizer);
    }
  });
  if (code != 0) std::exit(code);
  std::vector<double> off, on;
  for (std::size_t step = kFirst / 2; step + 1 < at.size(); ++step) {
    const bool opens = step == kFirst - 1, closes = step == kFirst + kSteps - 1;
    const bool inside = step >= kFirst && step < kFirst + kSteps;
    if (!opens && !closes) (inside ? on : off).push_back(1e3 * (at[step + 1] - at[step]));
  }
  const auto middle = [](std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  };
  return {middle(off), middle(on)};
}

nlohmann::json median(int ranks, bool operators, const std::string& folder) {
  std::vector<StepCost> costs;
  costs.reserve(5);
  for (int i = 0; i < 5; ++i) costs.push_back(run(ranks, operators, folder));
  std::sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.percent() < b.percent(); });
  const auto& middle = costs[2];
  return {{"ranks", ranks},
          {"operators", operators},
          {"off_ms", middle.off_ms},
          {"on_ms", middle.on_ms},
          {"percent", middle.percent()},
          {"least", costs.front().percent()},
          {"most", costs.back().percent()}};
}

}  // namespace

nlohmann::json trace_costs(const std::string& folder) {
  const double off = span_ns();
  const auto recorder = std::make_shared<troupe::TraceRecorder>();
  troupe::join_trace(recorder, "bench");
  recorder->start();
  const double on = span_ns();
  troupe::join_trace(nullptr, {});
  return {
      {"span_off_ns", off}, {"span_on_ns", on}, {"steps", {median(1, true, folder), median(1, false, folder), median(2, false, folder)}}};
}
