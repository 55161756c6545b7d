#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "launch/console.hpp"
#include "launch/job.hpp"
#include "launch/run_checkpoints.hpp"
#include "strategies/sync_batch_norm.hpp"
#include "tensor_io/autocast.hpp"
#include "tensor_io/random_seed.hpp"
#include "tensor_io/sampler.hpp"

namespace troupe {
namespace {

// LibTorch's generator is one per process: simulated ranks build their models one after the other, each from the same seed.
std::shared_ptr<torch::nn::Module> build_model(const Job& job, const Config& config) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  seed_generator(config.seed, {0x30de1});
  return job.model(config);
}

/// Held-out loss and accuracy: every sample once, each rank a part, sums over all ranks.
ValidationReport validate(const Job& job, Rank& rank, torch::nn::Module& model, const Dataset& dataset) {
  const auto started = std::chrono::steady_clock::now();
  torch::NoGradGuard no_grad;
  model.eval();
  auto sums = at::zeros({3}, at::kDouble);  // loss, right, samples
  const auto [first, last] = validation_part(dataset.size(), rank.rank(), rank.world_size());
  const auto share = std::max<std::int64_t>(1, rank.config().batch_size / rank.world_size());
  for (auto begin = first; begin < last; begin += share) {
    std::vector<std::int64_t> indices;
    for (auto i = begin; i < std::min(last, begin + share); ++i) indices.push_back(i);
    auto batch = dataset.get_batch(indices, SampleContext{rank.config().seed, 0});
    batch.counted = batch.numel();
    const AutocastGuard autocast(rank.config().use_amp);
    const auto loss = job.loss(model, batch, rank.config());
    const auto n = static_cast<double>(indices.size());
    sums += torch::tensor({loss.value.item<double>() * n, loss.correct, n}, torch::kFloat64);
  }
  model.train();
  rank.all_reduce(sums, ReduceOp::sum, "validation");
  ValidationReport report;
  report.samples = sums[2].item<double>();
  report.loss = sums[0].item<double>() / std::max(1.0, report.samples);
  report.accuracy = sums[1].item<double>() / std::max(1.0, report.samples);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return report;
}

/// What rank 0 shows and writes down while the others are silent.
class RunLog {
 public:
  explicit RunLog(Rank& rank) : rank_(rank) {
    if (!rank.is_main()) return;
    MetricsOptions options;
    if (!rank.config().run_dir.empty()) {
      std::filesystem::create_directories(rank.config().run_dir);
      options.path = rank.config().run_dir + "/metrics.jsonl";
      std::ofstream(rank.config().run_dir + "/config.toml") << config_to_toml(rank.config());
    }
    options.on_report = [this](const MetricsReport& report) { console_.show(report); };
    options.on_validation = [this](const ValidationReport& report) { console_.show(report); };
    metrics_ = rank.system().system().spawn(metrics, options);
  }
  ~RunLog() {
    if (!metrics_) return;
    flush();
    caf::anon_send_exit(metrics_, caf::exit_reason::user_shutdown);
    rank_.system().compute().mailbox().wait_for(metrics_);
  }
  template <class Message>
  void send(const Message& message) {
    if (metrics_) caf::anon_send(metrics_, message);
  }
  /// A line of rank 0's, after everything sent before.
  void line(const std::string& text) {
    if (!metrics_) return;
    flush();
    console_.line(text);
  }
  bool has_bar() const { return metrics_ && console_.has_bar(); }

 private:
  void flush() {
    rank_.system().compute().mailbox().request(metrics_, std::chrono::seconds(10), caf::unit).receive([](bool) {}, [](caf::error&) {});
  }
  Rank& rank_;
  Console console_;
  MetricsActor metrics_;
};

}  // namespace

void train(const Job& job, Rank& rank) {
  const auto& config = rank.config();
  auto model = build_model(job, config);
  if (config.sync_batchnorm) convert_sync_batchnorm(*model, rank.system().compute().services().program_lane);
  rank.distribute(model);
  auto optimizer = job.optimizer ? job.optimizer(*model, config) : rank.make_optimizer(*model);
  const auto data = job.data(config);
  RunLog log(rank);
  log.line("model: " + rank.system().compute().strategy().describe() + "; " + std::to_string(rank.world_size()) + " rank" +
           (rank.world_size() == 1 ? "" : "s") + ", backend " + std::string(rank.communicator().backend()) +
           "; data: " + data.train->name() + ", " + std::to_string(data.train->size()) + " samples");
  RunCheckpoints checkpoints(rank, *model, *optimizer);
  RunCheckpoints::Position position;
  if (!config.resume.empty()) {
    position = checkpoints.resume(config.resume, [&](const std::string& text) { log.line(text); });
    rank.set_cursor(position.epoch, position.step_in_epoch);
  }

  model->train();
  StepWindow window, bar_window;
  double data_ms = 0;
  auto last_bar = std::chrono::steady_clock::now();
  {
    auto stream = rank.loader(data.train);
    while (const auto batch = stream.next()) {
      data_ms += rank.last_data_wait_ms();
      {
        const AutocastGuard autocast(config.use_amp);
        const auto loss = job.loss(*model, *batch, config);
        rank.backward(loss.value, loss.correct);
      }
      if (!batch->last_of_step) continue;
      const auto report = rank.step(*optimizer);
      window.add(report, data_ms);
      bar_window.add(report, data_ms);
      data_ms = 0;
      if (!report.committed) log.line("step " + std::to_string(report.step) + " skipped: " + report.reason);
      position.epoch = batch->last_of_epoch ? batch->epoch + 1 : batch->epoch;
      position.step_in_epoch = batch->last_of_epoch ? 0 : batch->step + 1;

      const auto done = rank.system().compute().steps_done();
      MetricsReport metrics_report{{},  batch->epoch, config.epochs, done, batch->step + 1, rank.steps_per_epoch(), rank.total_steps(),
                                   true};
      if (done % config.log_interval == 0) {
        metrics_report.window = window;
        log.send(metrics_report);
        window = {};
        bar_window = {};
      } else if (log.has_bar() && std::chrono::steady_clock::now() - last_bar > std::chrono::milliseconds(100)) {
        last_bar = std::chrono::steady_clock::now();
        metrics_report.window = bar_window;
        metrics_report.log = false;
        log.send(metrics_report);
      }
      bool is_best = false;
      if (batch->last_of_epoch && data.held_out && config.validate_every > 0 && (batch->epoch + 1) % config.validate_every == 0) {
        auto validation = validate(job, rank, *model, *data.held_out);
        validation.epoch = batch->epoch;
        validation.step = done;
        validation.best = is_best = validation.accuracy > position.best;
        if (is_best) position.best = validation.accuracy;
        log.send(validation);
      }
      if (is_best || (config.save_every > 0 && done % config.save_every == 0)) checkpoints.save(position, is_best);
    }
  }
  if (data.held_out && config.validate_every > 0 && position.step_in_epoch != 0 && !rank.stop_requested()) {
    auto validation = validate(job, rank, *model, *data.held_out);
    validation.epoch = position.epoch;
    validation.step = rank.system().compute().steps_done();
    log.send(validation);
  }
  checkpoints.save(position, false);
  const auto path = checkpoints.finish();
  if (position.best >= 0) {
    char text[64];
    std::snprintf(text, sizeof text, "best held-out accuracy: %.2f%%", 100 * position.best);
    log.line(text);
  }
  if (!path.empty()) log.line("checkpoint: " + path);
  if (rank.stop_requested())
    log.line("stopped by a signal after step " + std::to_string(rank.system().compute().steps_done()) + "; --resume latest goes on");
  if (checkpoints.failure()) throw Error(*checkpoints.failure());
}

int run(const Job& job, int argc, char** argv) {
  return troupe::main(
      argc, argv, [&](Rank& rank) { train(job, rank); }, job.declare);
}

}  // namespace troupe
