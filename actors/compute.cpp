#include "actors/compute.hpp"

#include <cmath>

#include "tensor_io/random_seed.hpp"

namespace troupe {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Compute::Compute(caf::actor_system& system, ComputeOptions options) : options_(std::move(options)), self_(system) {}

Compute::~Compute() = default;

void Compute::connect(Services services) { services_ = std::move(services); }

void Compute::throw_failure(const ErrorReport& report) { throw Error(report); }

void Compute::throw_abort(const ErrorReport& report) {
  throw Error(ErrorReport{ErrorCode::aborted, options_.rank, "compute", step_, {}, "the job was aborted: " + report.to_string(), {}});
}

void Compute::throw_timeout(const char* actor, const char* what) {
  throw Error(ErrorReport{ErrorCode::timeout, options_.rank, "compute", step_, what,
                          std::string("the ") + actor + " did not answer within " + std::to_string(options_.timeout.count()) + " ms",
                          "raise collective_timeout if that is its pace"});
}

ErrorReport Compute::complete(ErrorReport report) const {
  if (report.rank < 0) report.rank = options_.rank;
  if (report.actor.empty()) report.actor = "compute";
  if (report.step < 0) report.step = step_;
  return report;
}

void Compute::set_steps_done(std::int64_t step) {
  step_ = step;
  move_on();
}

void Compute::move_on() { *position_ = {options_.training.seed, step_, micro_batch_, options_.rank, position_->visit + 1}; }

void Compute::distribute(std::shared_ptr<torch::nn::Module> model) {
  if (strategy_)
    throw Error(ErrorCode::usage, "distribute", "this rank has a model already", "put several networks into one torch::nn::Module");
  model_ = std::move(model);
  StrategyContext context;
  context.rank = options_.rank;
  context.world_size = options_.world_size;
  context.options = options_.strategy;
  context.bucket_lane = services_.bucket_lane;
  context.program_lane = services_.program_lane;
  context.reducer = services_.reducer;
  context.progress = services_.progress;
  context.wait_reduced = [this](std::int64_t step) {
    for (;;) {
      auto reduced = receive<BucketsReduced>("reducer", "the step's buckets");
      if (reduced.step == step) return reduced;
    }
  };
  strategy_ = make_strategy(std::move(context));
  strategy_->attach(model_);
  place_dropout(*model_, position_);
  move_on();
  const auto bytes = static_cast<std::int64_t>(vote_bytes(strategy_->parameter_names().size()));
  vote_in_ = at::zeros({bytes}, at::kByte);
  vote_out_ = at::zeros({bytes * options_.world_size}, at::kByte);
  step_started_ = std::chrono::steady_clock::now();
}

void Compute::seed_forward() {
  seed_generator(options_.training.seed,
                 {static_cast<std::uint64_t>(step_), static_cast<std::uint64_t>(micro_batch_), static_cast<std::uint64_t>(options_.rank)});
}

void Compute::backward(const at::Tensor& loss, double samples, double correct, double weight) {
  if (!strategy_) throw Error(ErrorCode::usage, "backward", "no model was distributed", "call rank.distribute(model) before the loop");
  if (micro_batch_ >= options_.training.grad_accum_steps) {
    throw Error(complete({ErrorCode::usage,
                          -1,
                          {},
                          -1,
                          "backward",
                          "all " + std::to_string(options_.training.grad_accum_steps) + " micro-batches of the step are done",
                          "call rank.step(optimizer) after the last one"}));
  }
  if (loss.numel() != 1) {
    throw Error(complete(
        {ErrorCode::usage, -1, {}, -1, "backward", "the loss has " + std::to_string(loss.numel()) + " elements", "reduce it to its mean"}));
  }
  if (micro_batch_ == 0) {
    vote_ = Vote{};
    vote_.step = step_;
    services_.program_lane->ledger().set_step(step_);
    strategy_->begin_step(step_);
  }
  const double value = loss.item<double>();
  if (weight != 0) {
    if (!std::isfinite(value)) vote_.not_finite_loss = 1;
    vote_.loss_sum += value * samples;
    vote_.samples += samples;
    vote_.correct += correct;
  }
  const bool last = micro_batch_ + 1 == options_.training.grad_accum_steps;
  strategy_->begin_backward(last, weight);
  const double factor = weight / static_cast<double>(options_.training.grad_accum_steps);
  if (factor == 1) {
    loss.backward();
  } else {
    (loss * factor).backward();
  }
  strategy_->end_backward();
  ++micro_batch_;
  move_on();
}

Decision Compute::vote(const GradientSummary& summary, double norm) {
  vote_.layout_hash = summary.layout_hash;
  vote_.not_finite_parameter = summary.not_finite_parameter;
  vote_.gradient_norm = norm;
  const int signal = process_stop_signal.load();
  vote_.stop_signal = static_cast<std::uint8_t>(signal != 0 ? signal : services_.status->stop_signal.load());
  vote_.rebuild = summary.order_changed ? 1 : 0;
  vote_.used = summary.used;
  const auto bytes = static_cast<std::size_t>(vote_in_.numel());
  encode_vote(vote_, {vote_in_.data_ptr<std::uint8_t>(), bytes});
  services_.program_lane->all_gather(vote_out_, vote_in_, "vote");
  std::vector<Vote> votes;
  for (int r = 0; r < options_.world_size; ++r) {
    votes.push_back(decode_vote({vote_out_.data_ptr<std::uint8_t>() + static_cast<std::size_t>(r) * bytes, bytes}, summary.used.size()));
  }
  return decide(votes, strategy_->parameter_names(), options_.training.on_not_finite == "stop");
}

StepReport Compute::step(Optimizer& optimizer, double lr) {
  if (micro_batch_ != options_.training.grad_accum_steps) {
    throw Error(complete({ErrorCode::usage,
                          -1,
                          {},
                          -1,
                          "step",
                          "only " + std::to_string(micro_batch_) + " of " + std::to_string(options_.training.grad_accum_steps) +
                              " micro-batches had their backward",
                          "call rank.backward for each micro-batch"}));
  }
  StepReport report;
  const auto wait_started = std::chrono::steady_clock::now();
  const auto summary = strategy_->reduce_gradients();
  report.exposed_ms = milliseconds_since(wait_started);
  const double clip = options_.training.clip_norm;
  const double norm = clip > 0 ? strategy_->gradient_norm() : 0;
  const auto vote_started = std::chrono::steady_clock::now();
  const auto decision = vote(summary, norm);
  report.exposed_ms += milliseconds_since(vote_started);

  strategy_->end_step(decision.used, decision.rebuild);
  if (decision.commit) {
    // Same guard against division by zero as torch.nn.utils.clip_grad_norm_.
    if (clip > 0 && norm + 1e-6 > clip) strategy_->scale_gradients(clip / (norm + 1e-6));
    const auto update_started = std::chrono::steady_clock::now();
    optimizer.step(lr);
    report.optimizer_ms = milliseconds_since(update_started);
  }
  strategy_->after_update();

  report.step = step_;
  report.committed = decision.commit;
  report.reason = decision.commit ? "" : (decision.culprit >= 0 ? "rank " + std::to_string(decision.culprit) + ": " : "") + decision.reason;
  report.loss = decision.loss;
  report.samples = decision.samples;
  report.correct = decision.correct;
  report.gradient_norm = decision.gradient_norm;
  report.lr = lr;
  report.stop_signal = decision.stop_signal;
  report.reduce_ms = summary.reduced.busy_ms;
  report.buckets = summary.reduced.buckets;
  report.launched_before_end = summary.reduced.launched_before_end;
  report.step_ms = milliseconds_since(step_started_);
  step_started_ = std::chrono::steady_clock::now();
  micro_batch_ = 0;
  ++step_;
  move_on();
  return report;
}

}  // namespace troupe
