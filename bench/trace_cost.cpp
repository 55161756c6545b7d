#include "bench/trace_cost.hpp"

#include <sys/resource.h>
#include <time.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <vector>

#include "tensor_io/base/trace.hpp"
#include "tensor_io/base/upper_median.hpp"
#include "tensor_io/data/datasets.hpp"
#include "troupe/troupe.hpp"

namespace {

namespace profiler = torch::autograd::profiler;

constexpr std::int64_t kWidth = 1024;
constexpr int kWarmUp = 10, kFirst = 30, kSteps = 20;  // of the window; as many are measured before and after it
constexpr int kRounds = 15;

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_minflt);
}

double span_ns() {
  constexpr int kSpans = 20'000;
  double least = 1e9;
  for (int round = 0; round < 7; ++round) {
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

/// What the window of steps is.
enum class Window {
  nothing,    ///< as the steps around it: what the measurement itself is worth
  kineto,     ///< LibTorch's profiler, switched on by hand, with nothing of ours
  operators,  ///< --profile steps=…
  spans       ///< --profile steps=…,operators=off
};

struct Variant {
  const char* name;
  int ranks;
  Window window;
};
constexpr Variant kVariants[] = {{"nothing", 1, Window::nothing},
                                 {"Kineto alone", 1, Window::kineto},
                                 {"operators=on", 1, Window::operators},
                                 {"operators=off", 1, Window::spans},
                                 {"two ranks, operators=off", 2, Window::spans}};

void start_kineto() {
  using namespace torch::profiler::impl;
  const std::set<ActivityType> activities{ActivityType::CPU};
  const ProfilerConfig config(ProfilerState::KINETO, false, false, false, false, false);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
}

/// Processor time of all threads, and page faults, of a step.
struct StepCost {
  double off_ms = 0, on_ms = 0, off_faults = 0, on_faults = 0;
  double close_ms = 0;  ///< of the step at whose end the window closes, above one outside of it
  double percent() const { return 100 * (on_ms / off_ms - 1); }
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(StepCost, off_ms, on_ms, off_faults, on_faults, close_ms)
};

// The median step of the window and of those before and after it. What opens and closes the window is in neither.
StepCost run(const Variant& variant, const std::string& folder) {
  const bool traces = variant.window == Window::operators || variant.window == Window::spans;
  const auto window = "steps=" + std::to_string(kFirst) + ":" + std::to_string(kFirst + kSteps) +
                      (variant.window == Window::spans ? ",operators=off" : "");
  const auto count = std::to_string(variant.ranks);
  std::vector<const char*> words{"bench_observe",
                                 "--ranks",
                                 count.c_str(),
                                 "--run_dir",
                                 folder.c_str(),
                                 "--batch_size",
                                 "16",
                                 "--tensorboard",
                                 "false",
                                 "--epochs",
                                 "1",
                                 "--save_every",
                                 "-1",
                                 "--threads",
                                 "1",
                                 "--optimizer",
                                 "sgd"};
  if (traces) words.insert(words.end(), {"--profile", window.c_str()});
  std::vector<double> at, faults;
  const int code =
      troupe::main(static_cast<int>(words.size()), const_cast<char**>(words.data()), [&](troupe::Rank& rank) {
        auto model = rank.distribute([] { return make_model(); });
        const auto optimizer = rank.make_optimizer(*model);
        const auto input = torch::ones({16 * (2 * kFirst + kSteps), kWidth});
        const bool by_hand = variant.window == Window::kineto;
        int step = 0;
        for (const auto& batch : rank.loader(std::make_shared<troupe::TensorDataset>(input, input))) {
          if (by_hand && step == kFirst) start_kineto();
          if (by_hand && step == kFirst + kSteps) (void)profiler::disableProfiler();
          if (rank.is_main()) {
            at.push_back(seconds_of(CLOCK_PROCESS_CPUTIME_ID));
            faults.push_back(page_faults());
            ++step;
          }
          rank.backward(torch::mse_loss(model->forward(batch.input), batch.target));
          rank.step(*optimizer);
        }
      });
  if (code != 0) std::exit(code);
  std::vector<double> off, on, off_faults, on_faults;
  double closing = 0;
  for (std::size_t step = kWarmUp; step + 1 < at.size() && step < 2 * kFirst + kSteps - kWarmUp; ++step) {
    const double ms = 1e3 * (at[step + 1] - at[step]), faulted = faults[step + 1] - faults[step];
    const bool opens = step == kFirst - 1, closes = step == kFirst + kSteps - 1;
    const bool inside = step >= kFirst && step < kFirst + kSteps;
    if (closes) closing = ms;
    if (opens || closes) continue;
    (inside ? on : off).push_back(ms);
    (inside ? on_faults : off_faults).push_back(faulted);
  }
  return {troupe::upper_median(off), troupe::upper_median(on), troupe::upper_median(off_faults),
          troupe::upper_median(on_faults), closing - troupe::upper_median(off)};
}

// In a process of its own, as a user's is: what Kineto does for the first time is in it.
StepCost run_in_process(std::size_t variant, const std::string& folder) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").replace_filename("bench_observe").string();
  const auto command = program + " trace-run " + std::to_string(variant) + " '" + folder + "'";
  FILE* child = ::popen(command.c_str(), "r");
  if (child == nullptr) std::exit(1);
  std::string last;
  char line[4096];
  while (std::fgets(line, sizeof line, child) != nullptr) last = line;
  if (::pclose(child) != 0) std::exit(1);
  return nlohmann::json::parse(last).get<StepCost>();
}

// With the interval that holds the median of what is behind the values, in 95 of 100 cases: by order, since it is not
// normal.
nlohmann::json spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  const auto rank = static_cast<std::size_t>(std::max(0.0, n / 2 - 0.98 * std::sqrt(n)));
  return {{"median", values[values.size() / 2]}, {"least", values[rank]}, {"most", values[values.size() - 1 - rank]}};
}

}  // namespace

nlohmann::json trace_costs(const std::string& folder) {
  const double off = span_ns();
  const auto recorder = std::make_shared<troupe::TraceRecorder>();
  troupe::join_trace(recorder, "bench");
  recorder->start();
  const double on = span_ns();
  troupe::join_trace(nullptr, {});
  // In turns, so that what the machine does meanwhile hits all alike.
  std::vector<std::vector<StepCost>> costs(std::size(kVariants));
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t v = 0; v < std::size(kVariants); ++v)
      costs[v].push_back(run_in_process(v, folder + "/" + std::to_string(round) + "-" + std::to_string(v)));
  }
  nlohmann::json steps = nlohmann::json::array();
  const auto over = [&](std::size_t v, auto value) {
    std::vector<double> values;
    for (const auto& cost : costs[v]) values.push_back(value(cost));
    return values;
  };
  for (std::size_t v = 0; v < std::size(kVariants); ++v) {
    const auto median = [&](auto member) {
      return troupe::upper_median(over(v, [&](const StepCost& c) { return c.*member; }));
    };
    const auto percent = over(v, [](const StepCost& c) { return c.percent(); });
    nlohmann::json row{{"window", kVariants[v].name},
                       {"off_ms", median(&StepCost::off_ms)},
                       {"on_ms", median(&StepCost::on_ms)},
                       {"off_faults", median(&StepCost::off_faults)},
                       {"on_faults", median(&StepCost::on_faults)},
                       {"close_ms", median(&StepCost::close_ms)},
                       {"percent", spread_of(percent)}};
    if (kVariants[v].window == Window::operators) {  // beyond Kineto, round by round
      auto beyond = percent;
      for (std::size_t i = 0; i < beyond.size(); ++i) beyond[i] -= costs[1][i].percent();
      row["beyond_kineto"] = spread_of(beyond);
    }
    steps.push_back(row);
  }
  return {{"span_off_ns", off}, {"span_on_ns", on}, {"rounds", kRounds}, {"steps", steps}};
}

nlohmann::json trace_run(std::size_t variant, const std::string& folder) {
  return run(kVariants[variant % std::size(kVariants)], folder);
}
