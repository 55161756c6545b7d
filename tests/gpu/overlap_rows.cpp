// How much of communication a step waits for, on one device: collectives that take their time (PacedNccl) beside the
// model's own kernels.
#include "bench/step_job.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "tests/gpu/paced_device.hpp"
#include "tests/gpu/rows.hpp"
#include "tests/support/small_training.hpp"

namespace troupe::test {
namespace {

using testing::SmallTraining;
constexpr int kSteps = 10;  // of a block
constexpr std::int64_t kBatch = 8;
constexpr double kNvlink = 370e9;  // bytes a second, of a ring on H100s

struct Measured {
  double step_ms = 0, free_step_ms = 0, all_ms = 0, after_backward_ms = 0, last_ms = 0;
  double wire_bytes = 0;
};

// One rank's training, whose steps can be paced or not.
class Trainer {
 public:
  Trainer(Compute& compute, std::shared_ptr<PacedDevice> paced, bool autocast)
      : compute_(compute),
        paced_(std::move(paced)),
        autocast_(autocast),
        job_(step_job::make_job("gpt124m", 0, kBatch, 0)) {
    const at::Device device(at::kCUDA, 0);
    for (auto* tensors : {&job_.inputs, &job_.targets}) {
      for (auto& tensor : *tensors) tensor = tensor.to(device);
    }
    job_.model->to(device);
    compute_.distribute(job_.model);
    OptimizerOptions options;
    options.optimizer = "adamw";
    optimizer_ = make_optimizer(options, testing::one_group(*job_.model));
  }

  void step() {
    compute_.seed_forward();
    at::Tensor loss;
    {
      const AutocastGuard autocast(autocast_, at::kBFloat16, at::kCUDA);
      loss = job_.loss(step_++);
    }
    compute_.backward(loss, static_cast<double>(kBatch));
    paced_->mark(DeviceStream::current({at::kCUDA, 0}).native());
    compute_.step(*optimizer_, 1e-4);
  }

  Measured measure(double bytes_per_s) {
    PacedDevice::Pace pace;
    pace.bytes_per_s = bytes_per_s;
    std::vector<double> steps, free_steps, all, after, last;
    Measured result;
    for (int block = -1; block < kBlocks; ++block) {
      set_pace({});
      const double free_step = seconds(kSteps, [&] { step(); });
      set_pace(pace);
      step();  // what was gathered ahead without a pace
      const double paced_step = seconds(kSteps, [&] { step(); });
      if (block < 0) continue;  // warm now
      steps.push_back(1e3 * paced_step);
      free_steps.push_back(1e3 * free_step);
      // One at a time, with its events read before the next.
      for (int i = 0; i < 3; ++i) {
        torch::cuda::synchronize();
        paced_->begin();
        step();
        const auto spans = paced_->spans();
        all.push_back(spans.all_ms);
        after.push_back(spans.all_reduces_after_mark);
        last.push_back(spans.last_all_reduce_ms);
        result.wire_bytes = static_cast<double>(spans.wire_bytes);
      }
    }
    result.step_ms = median(steps);
    result.free_step_ms = median(free_steps);
    result.all_ms = median(all);
    result.after_backward_ms = median(after);
    result.last_ms = median(last);
    return result;
  }

 private:
  void set_pace(const PacedDevice::Pace& pace) {
    torch::cuda::synchronize();
    paced_->begin();
    paced_->set_pace(pace);
  }

  Compute& compute_;
  std::shared_ptr<PacedDevice> paced_;
  bool autocast_;
  step_job::Job job_;
  std::unique_ptr<Optimizer> optimizer_;
  std::size_t step_ = 0;
};

std::string of(const std::string& strategy, double bytes_per_s) {
  return " of " + strategy + ", GPT-124M, bf16, batch " + std::to_string(kBatch) + ", paced to " +
         text("%.0f GB/s", 1e-9 * bytes_per_s);
}

void print(const std::string& strategy, double pace, const Measured& m) {
  const auto all = text("%.3f ms", m.all_ms);
  if (strategy == "ddp") {
    row("communication after backward, of all communication" + of(strategy, pace), text("%.3f ms", m.after_backward_ms),
        all, m.after_backward_ms / m.all_ms, "0.05");
    // The tied embedding's gradient, a third of all bytes, is whole when backward ends.
    row("what no order could hide: the last bucket alone, of all communication" + of(strategy, pace),
        text("%.3f ms", m.last_ms), all, m.last_ms / m.all_ms, "");
  }
  row("what paced collectives add to a step, of all communication" + of(strategy, pace),
      text("%.3f ms", m.step_ms - m.free_step_ms), all, (m.step_ms - m.free_step_ms) / m.all_ms, "0.05");
}

void rows_of(const std::string& strategy) {
  const auto paced = PacedDevice::create();
  SmallTraining training(strategy == "fsdp" ? "fsdp full_shard" : strategy, 1);  // registers the strategies
  auto& options = training.jobs.options;
  options.device = {at::kCUDA, 0};
  options.communicator.backend = "nccl";
  options.nccl = std::make_shared<PacedNccl>(paced);
  options.training.verify_every = 0;
  options.strategy.bucket_cap_mb = StrategyOptions{}.bucket_cap_mb;
  options.strategy.first_bucket_mb = StrategyOptions{}.first_bucket_mb;
  if (strategy == "fsdp") options.strategy.param_dtype = "bfloat16";
  const auto errors = training.jobs.run([&](RankSystem& system) {
    Trainer trainer(system.compute(), paced, strategy == "ddp");
    const auto quick = trainer.measure(kNvlink);
    print(strategy, kNvlink, quick);
    // A slower link, where communication is half as long as the step without it.
    const double slow = quick.wire_bytes / (0.5e-3 * quick.free_step_ms);
    if (slow < kNvlink) print(strategy, slow, trainer.measure(slow));
  });
  if (!errors[0].empty()) throw std::runtime_error(errors[0]);
}

}  // namespace

void overlap_rows() {
  rows_of("ddp");
  rows_of("fsdp");
}

}  // namespace troupe::test
