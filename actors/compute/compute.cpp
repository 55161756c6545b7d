#include "actors/compute/compute.hpp"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "actors/compute/heal.hpp"
#include "actors/compute/step_graphs.hpp"
#include "actors/strategy/device_memory.hpp"
#include "actors/strategy/early_updates.hpp"
#include "actors/strategy/micro_batch_order.hpp"
#include "actors/strategy/snapshots.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/random_seed.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/base/trace.hpp"
#include "tensor_io/layout/named_parameters.hpp"

namespace troupe {
namespace {

std::int64_t nanoseconds(std::chrono::steady_clock::time_point time) { return time.time_since_epoch().count(); }

struct Awaiting {
  std::atomic<bool>& flag;
  explicit Awaiting(std::atomic<bool>& told) : flag(told) { flag.store(true); }
  ~Awaiting() { flag = false; }
  Awaiting(const Awaiting&) = delete;
  Awaiting& operator=(const Awaiting&) = delete;
};

}  // namespace

Compute::Compute(caf::actor_system& system, ComputeOptions options)
    : options_(std::move(options)), self_(system), protocol_(options_.process) {
  const auto& training = options_.training;
  const bool fp16 = training.use_amp && training.amp_dtype == "fp16";
  loss_scaler_ = LossScaler(training, training.loss_scaler == "on" || (training.loss_scaler == "auto" && fp16));
}

Compute::~Compute() = default;

void Compute::join(LaneBuilder builder, RankSupervisorActor supervisor, std::shared_ptr<RankStatus> status,
                   std::chrono::milliseconds timeout) {
  builder_ = std::move(builder);
  services_.supervisor = std::move(supervisor);
  services_.status = std::move(status);
  std::optional<ErrorReport> why;
  for (;;) {
    if (why) caf::anon_send(services_.supervisor, protocol_.interruption(*why));
    const auto next = await_membership(timeout);
    try {
      enter(next);
      return;
    } catch (const Error& error) {
      if (!may_be_recovered(error.code()) || services_.status->job_over) throw;
      why = error.report();
    }
  }
}

void Compute::throw_failure(const ErrorReport& report) { throw Error(report); }

void Compute::throw_abort(const ErrorReport& report) {
  using enum ErrorCode;
  if (report.code == ok || report.code == parked || report.code == state_lost || report.code == fenced)
    throw Error(report);
  throw Error(ErrorReport{
      ErrorCode::aborted, rank(), "compute", steps_done(), {}, "the job was aborted: " + report.to_string(), {}});
}

void Compute::throw_interrupted(const InterruptRanks& message) {
  throw Error(ErrorReport{ErrorCode::aborted, rank(), "compute", steps_done(), {}, message.reason.cause, {}});
}

void Compute::throw_timeout(const char* actor, const char* what) {
  throw Error(ErrorReport{
      ErrorCode::internal, rank(), "compute", steps_done(), what,
      std::string("the ") + actor + " did not answer within " + std::to_string(options_.timeout.count()) + " ms",
      "raise collective_timeout if that is its pace"});
}

// While the optimizer is there: an error's way up ends it. Before its first step: whoever asks for its state later may
// have changed it, so that on a device it would be read once more.
void Compute::note_optimizer(Optimizer& optimizer) {
  std::vector<at::Tensor> moments;
  for (const auto& [name, tensor] : optimizer.state()) moments.push_back(tensor);
  optimizer_bytes_ = bytes_on(services_.program_lane->device(), moments);
}

std::vector<HeldMemory> Compute::held_memory() const {
  const auto* memory = capability<DeviceMemory>();
  auto held = memory == nullptr ? std::vector<HeldMemory>() : memory->held_memory();
  if (strategy_) held.push_back({"optimizer state", optimizer_bytes_.value_or(0)});
  return held;
}

ErrorReport Compute::complete(ErrorReport report) const {
  if (report.rank < 0) report.rank = rank();
  if (report.actor.empty()) report.actor = "compute";
  if (report.step < 0) report.step = steps_done();
  return report;
}

void Compute::resume_at(std::int64_t step) {
  protocol_.resumed(step);
  show_steps_done();
}

void Compute::show_steps_done() {
  services_.status->steps_done = steps_done();
  move_on();
}

// Random numbers are those of the samples, whichever rank has them.
Share Compute::place() const {
  if (const auto* shares = capability<DemandShares>()) return shares->next_share();
  return {micro_batch_, data_shard().index};
}

std::int64_t Compute::shares_per_rank() const {
  const auto* shares = capability<DemandShares>();
  return shares == nullptr ? 0 : shares->shares_per_rank();
}

void Compute::move_on() {
  const auto at = place();
  *position_ = {options_.training.seed, steps_done(), at.micro_batch, at.index, position_->visit + 1};
}

DataShard Compute::data_shard() const {
  const auto* placement = capability<Placement>();
  return placement == nullptr ? DataShard{rank(), world_size()} : placement->data_shard();
}

StrategyContext Compute::strategy_context(bool newcomer) {
  StrategyContext context;
  context.rank = rank();
  context.world_size = world_size();
  context.newcomer = newcomer;
  context.options = options_.strategy;
  for (const auto& member : membership_.members) context.hosts.push_back(member.host);
  context.register_lane = [this](const std::string& name, std::shared_ptr<Communicator> lane) {
    caf::anon_send(services_.supervisor, RegisterLane{name, membership_.generation, std::move(lane)});
  };
  context.bucket_lane = services_.bucket_lane;
  context.program_lane = services_.program_lane;
  context.reducer = services_.reducer;
  context.progress = services_.progress;
  context.system = &self_->system();
  auto frozen = std::make_shared<std::set<const void*>>();
  for (const auto& [name, parameter] : frozen_) frozen->insert(parameter.unsafeGetTensorImpl());
  context.frozen = std::move(frozen);
  context.timeout = options_.timeout;
  context.announce = [this](std::string news) { notices_.push_back(std::move(news)); };
  context.wait_reduced = [this](std::int64_t step) {
    const Awaiting told(services_.status->awaits_reducer);
    for (;;) {
      auto reduced = receive<BucketsReduced>("reducer", "the step's buckets");
      trace_message("BucketsReduced", "reducer", reduced.finished_ns);
      if (reduced.step == step) return reduced;
    }
  };
  return context;
}

void Compute::distribute(std::shared_ptr<torch::nn::Module> model) {
  if (strategy_)
    throw Error(ErrorCode::usage, "distribute", "this rank has a model already",
                "put several networks into one torch::nn::Module");
  model_ = std::move(model);
  for (auto& [name, parameter] : unique_parameters(*model_)) {
    if (!parameter.requires_grad()) frozen_.emplace_back(name, parameter);
  }
  for (;;) {
    try {
      strategy_ = make_strategy(strategy_context(protocol_.must_heal()));
      protocol_.keeps_snapshots(capability<Snapshots>() != nullptr);
      late_ = checks_late_vote() ? std::make_unique<LateVote>(options_.training, services_.program_lane->device())
                                 : nullptr;
      check_early_update();
      if (shares_per_rank() > 0 && options_.training.grad_accum_steps > 1) {
        throw Error(ErrorCode::usage, "grad_accum_steps", options_.strategy.strategy + " cuts a step's batch itself",
                    "leave it at 1");
      }
      graphs_ = make_graphs();
      strategy_->attach(model_);
      allocate_votes();
      if (protocol_.must_heal()) heal();
      go_back();
      break;
    } catch (const Error& error) {
      strategy_.reset();
      protocol_.keeps_snapshots(false);
      recover(error);
    }
  }
  protocol_.became_distributed();
  strategy_->set_rollback_point();
  place_dropout(*model_, position_);
  move_on();
  step_started_ = std::chrono::steady_clock::now();
}

void Compute::allocate_votes() {
  const auto bytes = static_cast<std::int64_t>(vote_bytes(strategy_->parameter_names().size()));
  vote_in_ = at::zeros({bytes}, at::kByte);
  votes_out_ = at::zeros({bytes * world_size()}, at::kByte);
  pace_.reset();
  shares_.reset(world_size());
  own_ = {};
  inside_ms_ = shares_wait_ms_ = 0;
  device_times_.reset(services_.program_lane->device());
  optimizer_bytes_.reset();
  if (graphs_) graphs_->forget();
  mark_time();
}

void Compute::seed_forward() {
  if (micro_batch_ == 0 && strategy_) {
    strategy_->set_rollback_point();
    if (auto* shares = capability<DemandShares>()) shares->begin_forward(steps_done());
  }
  seed_micro_batch();
  begin_section();
}

void Compute::seed_micro_batch() {
  const auto at = place();
  seed_generator(options_.training.seed,
                 {static_cast<std::uint64_t>(steps_done()), static_cast<std::uint64_t>(at.micro_batch),
                  static_cast<std::uint64_t>(at.index)},
                 services_.program_lane ? services_.program_lane->device() : at::kCPU);
}

// A strategy lays out gradients for what is trained when it gets the model.
void Compute::refuse_unfrozen() const {
  for (const auto& [name, parameter] : frozen_) {
    if (!parameter.requires_grad()) continue;
    throw Error(complete({ErrorCode::usage,
                          -1,
                          {},
                          -1,
                          "backward",
                          "parameter " + name + " is trained now, and was frozen when the model was distributed",
                          "freeze it after rank.distribute, or resume with a model in which it is not frozen"}));
  }
}

void Compute::begin_votes() {
  refuse_unfrozen();
  vote_ = Vote{};
  vote_.step = steps_done();
  overflowed_ = false;
  begun_rate_.reset();
  device_losses_.clear();
  // A power of two, so that it changes no bits.
  const auto shards = data_shard().count;
  sum_divisor_ = std::exp2(std::max(0.0, std::round(std::log2(expected_elements_ / shards))));
  vote_.gradient_divisor = sum_divisor_ * shards;
  if (late_ && late_->unvoted < 0) late_->scale.load(loss_scaler_);
  services_.program_lane->ledger().set_step(steps_done());
  strategy_->begin_step(steps_done());
}

void Compute::check_is_scalar(const at::Tensor& loss) const {
  if (loss.numel() == 1) return;
  throw Error(complete({ErrorCode::usage,
                        -1,
                        {},
                        -1,
                        "backward",
                        "the loss has " + std::to_string(loss.numel()) + " elements",
                        "reduce it to its mean"}));
}

void Compute::check_loss(const Loss& loss) const {
  check_is_scalar(loss.value);
  if (loss.elements) refuse_sum();
  const bool first = vote_.elements == Vote::kNoLoss, sums = vote_.elements >= 0;
  if (first || loss.elements.has_value() == sums) return;
  throw Error(complete({ErrorCode::usage,
                        -1,
                        {},
                        -1,
                        "backward",
                        std::string("this micro-batch's loss is a ") + (sums ? "mean" : "sum") + ", the ones before " +
                            (sums ? "are sums" : "are means"),
                        "give Loss::sum for every micro-batch, or for none"}));
}

// They use the gradient before the ranks' counts are known.
void Compute::refuse_sum() const {
  const char* why = nullptr;
  if (options_.strategy.early_update) why = "early_update updates parameters";
  if (shares_per_rank() > 0) why = "the strategy's server updates parameters";
  if (graphs_) why = "cuda_graphs fixes what is computed";
  if (late_) why = "vote late lets the device update parameters";
  if (why == nullptr) return;
  throw Error(complete({ErrorCode::usage,
                        -1,
                        {},
                        -1,
                        "backward",
                        std::string("the loss is a sum, and ") + why + " before all ranks' elements are counted",
                        "give the mean of the loss, or leave that setting out"}));
}

void Compute::check_micro_batch_is_due() const {
  if (micro_batch_ < options_.training.grad_accum_steps) return;
  throw Error(
      complete({ErrorCode::usage,
                -1,
                {},
                -1,
                "backward",
                "all " + std::to_string(options_.training.grad_accum_steps) + " micro-batches of the step are done",
                "call rank.step(optimizer) after the last one"}));
}

void Compute::count_loss(const MicroBatchLoss& micro_batch) {
  const auto& [value, correct, elements] = micro_batch.loss;
  const auto* placement = capability<Placement>();
  const bool counts = placement == nullptr || placement->counts_samples(), is_sum = elements.has_value();
  if (vote_.elements == Vote::kNoLoss) vote_.elements = is_sum ? 0 : Vote::kMeans;
  if (micro_batch.weight == 0) return;
  const double times = is_sum ? 1 : micro_batch.samples;
  if (value.is_cpu()) {
    count_value(value.item<double>(), times, counts);
  } else {
    // To read them now would wait for the whole forward.
    device_losses_.push_back({value.detach(), counts ? correct.on_device() : at::Tensor(), times, counts});
  }
  if (!counts) return;
  if (is_sum) vote_.elements += *elements;
  vote_.samples += micro_batch.samples;
  if (value.is_cpu() || !correct.on_device().defined()) vote_.correct += correct.value();
}

double Compute::backward_factor(const MicroBatchLoss& micro_batch) {
  if (services_.status->poisoned.exchange(false)) return std::nan("");
  const auto weight = micro_batch.weight, scale = loss_scaler_.scale();
  if (micro_batch.loss.elements) return weight == 0 ? 0 : scale / sum_divisor_;
  return weight * scale / static_cast<double>(options_.training.grad_accum_steps);
}

void Compute::run_micro_batches(const std::function<MicroBatchLoss(std::int64_t)>& forward) {
  if (!strategy_)
    throw Error(ErrorCode::usage, "backward", "no model was distributed",
                "call rank.distribute(model) before the loop");
  class StepsMicroBatches final : public MicroBatches {
   public:
    StepsMicroBatches(Compute& compute, const std::function<MicroBatchLoss(std::int64_t)>& forward)
        : compute_(compute), forward_(forward) {}
    int count() const override { return static_cast<int>(compute_.options_.training.grad_accum_steps); }
    at::Tensor forward(int micro_batch) override {
      const auto result = run(micro_batch);
      fault_point("forward", compute_.steps_done());
      compute_.check_loss(result.loss);
      compute_.count_loss(result);
      if (result.weight == 0) return at::zeros({});  // no gradient comes from it: 0 times infinity is NaN
      return result.loss.value * compute_.backward_factor(result);
    }
    void try_forward(int micro_batch) override { (void)run(micro_batch); }

   private:
    MicroBatchLoss run(int micro_batch) {
      compute_.micro_batch_ = micro_batch;
      compute_.move_on();
      compute_.seed_micro_batch();
      return forward_(micro_batch);
    }
    Compute& compute_;
    const std::function<MicroBatchLoss(std::int64_t)>& forward_;
  };
  auto* order = capability<MicroBatchOrder>();
  if (order == nullptr) {
    throw Error(complete({ErrorCode::usage,
                          -1,
                          {},
                          -1,
                          "backward",
                          "strategy " + options_.strategy.strategy + " leaves the order of micro-batches to the loop",
                          "call rank.backward for each of them"}));
  }
  strategy_->set_rollback_point();
  begin_section();
  begin_votes();
  StepsMicroBatches work(*this, forward);
  order->run_micro_batches(work);
  trace_since(nanoseconds(mark_), "forward and backward");
  fault_point("backward", steps_done());
  end_section(DeviceTimes::Part::forward);
  micro_batch_ = options_.training.grad_accum_steps;
  move_on();
}

void Compute::backward(const MicroBatchLoss& micro_batch) {
  if (!strategy_)
    throw Error(ErrorCode::usage, "backward", "no model was distributed",
                "call rank.distribute(model) before the loop");
  check_micro_batch_is_due();
  if (capability<MicroBatchOrder>() != nullptr) {
    throw Error(complete(
        {ErrorCode::usage,
         -1,
         {},
         -1,
         "backward",
         "strategy " + options_.strategy.strategy + " runs a step's forwards and backwards in an order of its own",
         "call rank.run_micro_batches, or leave the loop to troupe::run"}));
  }
  check_is_scalar(micro_batch.loss.value);  // before anything of the step begins
  if (micro_batch_ == 0 && !has_share_) begin_votes();
  check_loss(micro_batch.loss);
  backward_begun(micro_batch);
}

void Compute::backward_begun(const MicroBatchLoss& micro_batch) {
  const auto& loss = micro_batch.loss.value;
  trace_since(nanoseconds(mark_), "forward");
  end_section(DeviceTimes::Part::forward);
  fault_point("forward", steps_done());
  count_loss(micro_batch);
  const bool last = micro_batch_ + 1 == options_.training.grad_accum_steps;
  if (last) begin_update();
  strategy_->begin_backward(last, micro_batch.weight);
  fault_point("backward", steps_done());
  if (late_) {
    start_of_late_backward(loss, micro_batch.weight).backward();
  } else if (const double factor = backward_factor(micro_batch); factor == 1) {
    loss.backward();
  } else {
    (loss * factor).backward();
  }
  strategy_->end_backward();
  trace_since(nanoseconds(mark_), "backward");
  end_section(DeviceTimes::Part::backward);
  ++micro_batch_;
  move_on();
}

void Compute::count_value(double value, double samples, bool counts) {
  if (!std::isfinite(value)) vote_.not_finite_loss = 1;
  if (counts) vote_.loss_sum += value * samples;
}

std::vector<Vote> Compute::vote(const GradientSummary& summary, double norm) {
  vote_.layout_hash = summary.layout_hash;
  vote_.dataset_size = dataset_size_;
  vote_.data_hash = data_hash_;
  vote_.not_finite_parameter = summary.not_finite_parameter;
  vote_.made_by_hook = summary.made_by_hook ? 1 : 0;
  vote_.gradient_norm = norm;
  const int signal = process_stop_signal.load();
  vote_.stop_signal = static_cast<std::uint8_t>(signal != 0 ? signal : services_.status->stop_signal.load());
  vote_.rebuild = summary.order_changed ? 1 : 0;
  vote_.used = summary.used;
  vote_.parameter_hash = parameter_hash_if_due();
  vote_.own = std::exchange(own_, {});
  return exchange_votes();
}

std::vector<Vote> Compute::exchange_votes() {
  encode_vote(vote_, {vote_in_.data_ptr<std::uint8_t>(), static_cast<std::size_t>(vote_in_.numel())});
  fault_point("vote", steps_done());
  protocol_.vote();
  services_.program_lane->all_gather(votes_out_, vote_in_, "vote");
  const std::string votes(reinterpret_cast<const char*>(votes_out_.data_ptr<std::uint8_t>()),
                          static_cast<std::size_t>(votes_out_.numel()));
  protocol_.votes_came(votes);
  fault_point("voted", steps_done());
  return decode_votes(votes);
}

std::vector<Vote> Compute::decode_votes(std::string_view votes) const {
  const auto parameters = strategy_->parameter_names().size();
  const auto bytes = vote_bytes(parameters);
  std::vector<Vote> decoded;
  for (std::size_t begin = 0; begin + bytes <= votes.size(); begin += bytes) {
    decoded.push_back(decode_vote({reinterpret_cast<const std::uint8_t*>(votes.data()) + begin, bytes}, parameters));
  }
  return decoded;
}

Decision Compute::decide_by(const std::vector<Vote>& votes) const {
  const bool stop = options_.training.on_not_finite == "stop";
  // An overflow at a large loss scale is what the scaler looks for; a loss that is not finite, or an overflow without
  // scale, is not.
  return decide(votes, strategy_->parameter_names(),
                {stop, stop && (!loss_scaler_.enabled() || loss_scaler_.exhausted())},
                late_ && late_->unvoted >= 0 ? std::optional(late_->unvoted) : std::nullopt);
}

void Compute::apply(Optimizer& optimizer, double lr, double norm, double gradient_factor) {
  // Same guard against division by zero as torch.nn.utils.clip_grad_norm_.
  const double clip = options_.training.clip_norm;
  double factor = gradient_factor / loss_scaler_.scale();
  if (clip > 0 && norm + 1e-6 > clip) factor *= clip / (norm + 1e-6);
  if (factor != 1) strategy_->scale_gradients(factor);
  if (auto* early = capability<EarlyUpdates>()) return early->update(optimizer, lr);
  optimizer.step(lr);
}

void Compute::commit(const Decision& decision, Optimizer& optimizer, double lr) {
  strategy_->end_step(decision.used, decision.rebuild, decision.commit);
  fault_point("committed", steps_done());
  if (decision.commit && !begun_rate_)
    apply(optimizer, lr,
          strategy_->replicas_equal() ? decision.gradient_norm : vote_.gradient_norm * decision.gradient_factor,
          decision.gradient_factor);
  loss_scaler_.update(decision.not_finite);
  end_step();
}

void Compute::end_step() {
  fault_point("optimizer", steps_done());
  begun_rate_.reset();
  forget_micro_batches();
  protocol_.end_step();
  show_steps_done();
}

void Compute::forget_micro_batches() {
  expected_rate_.reset();
  micro_batch_ = 0;
  has_share_ = false;
}

void Compute::fill_report(StepReport& report, const Decision& decision) const {
  report.committed = decision.commit;
  report.reason = decision.commit ? ""
                                  : (decision.culprit >= 0 ? "rank " + std::to_string(decision.culprit) + ": " : "") +
                                        decision.reason;
  report.loss = decision.loss;
  report.max_loss = decision.max_loss;
  report.samples = decision.samples;
  report.correct = decision.correct;
  report.gradient_norm = decision.gradient_norm;
  report.stop_signal = decision.stop_signal;
}

// With a scaler the norm also shows what overflowed only in the sum over ranks.
bool Compute::wants_norm() const { return options_.training.clip_norm > 0 || loss_scaler_.enabled(); }

double Compute::gradient_norm() { return wants_norm() ? strategy_->gradient_norm() / loss_scaler_.scale() : 0; }

// Whether the step has another share for this rank.
bool Compute::end_share(Optimizer& optimizer, double lr) {
  settle_optimizer(optimizer);  // it is used before the vote
  const auto started = std::chrono::steady_clock::now();
  has_share_ = capability<DemandShares>()->end_share([&] {
    const double norm = gradient_norm();
    overflowed_ = overflowed_ || !std::isfinite(norm);
    if (!overflowed_) apply(optimizer, lr, norm);  // else the next share's loss would not be finite either
  });
  trace_since(nanoseconds(started), "exchange with the server");
  shares_wait_ms_ += milliseconds_since(started);
  if (has_share_) {
    micro_batch_ = 0;
    move_on();
  }
  return has_share_;
}

StepReport Compute::step(Optimizer& optimizer, double lr) {
  if (micro_batch_ != options_.training.grad_accum_steps) {
    throw Error(complete({ErrorCode::usage,
                          -1,
                          {},
                          -1,
                          "step",
                          "only " + std::to_string(micro_batch_) + " of " +
                              std::to_string(options_.training.grad_accum_steps) + " micro-batches had their backward",
                          "call rank.backward for each micro-batch"}));
  }
  StepReport report;
  report.step = report.measured_step = steps_done();
  report.lr = optimizer.first_rate(lr);
  report.loss_scale = loss_scaler_.scale();
  strategy_->shard_optimizer(optimizer);
  check_begun_update(optimizer, lr);
  try {
    take_snapshot_if_due(optimizer);
    if (shares_per_rank() > 0 && end_share(optimizer, lr)) {
      report.committed = false;
      report.pending = true;
      return report;
    }
    const auto wait_started = std::chrono::steady_clock::now();
    device_times_.end_backward();
    auto summary = strategy_->reduce_gradients();
    device_times_.end_reduction(summary.reduced.on_device, take_device_waits());
    trace_since(nanoseconds(wait_started), "wait for gradients");
    fault_point("reduced", steps_done());
    report.exposed_ms = milliseconds_since(wait_started) + std::exchange(shares_wait_ms_, 0);
    report.reduce_ms = summary.reduced.busy_ms;
    double norm = late_ ? decide_late(summary) : read_device(summary);
    if (!late_) norm = summary.device_checks.defined() && wants_norm() ? norm / loss_scaler_.scale() : gradient_norm();
    tell_device_times(report);
    if (overflowed_) norm = std::numeric_limits<double>::infinity();
    settle_optimizer(optimizer);
    const auto vote_started = std::chrono::steady_clock::now();
    const auto votes = vote(summary, norm);
    trace_since(nanoseconds(vote_started), "vote");
    report.exposed_ms += milliseconds_since(vote_started);
    const auto decision = decide_by(votes);
    const bool healed = heal_diverged(votes, optimizer, report);
    watch_pace(votes, report);
    if (healed && !late_) {  // with a late vote the device has the step already
      run_step_again(decision, report);
      end_step_time(report);
      return report;
    }
    const auto update_started = std::chrono::steady_clock::now();
    const bool is_first = !optimizer_bytes_;
    if (is_first) note_optimizer(optimizer);
    if (late_) settle_by(decision);
    late_ ? commit_late(decision, optimizer, lr) : commit(decision, optimizer, lr);
    if (is_first && *optimizer_bytes_ == 0) note_optimizer(optimizer);  // one that makes its state in its first step
    trace_since(nanoseconds(update_started), "optimizer");
    report.optimizer_ms = milliseconds_since(update_started);
    late_ ? fill_late_report(report, decision) : fill_report(report, decision);
    report.buckets = summary.reduced.buckets;
    report.launched_before_end = summary.reduced.launched_before_end;
    report.message_us = summary.message_us;
    report.bucket_queue_ms = summary.reduced.queued_ms;
    report.bucket_bytes = summary.reduced.bytes;
    report.inside_ms = std::exchange(inside_ms_, 0);
    strategy_->after_update();
    if (auto* early = capability<EarlyUpdates>()) {
      early->prepare_updates(optimizer);
      if (prepared_for_ == nullptr) prepared_for_ = &optimizer;
    }
    for (auto& notice : std::exchange(notices_, {})) report.notices.push_back(std::move(notice));
    strategy_->set_rollback_point();
    take_snapshot_if_due(optimizer);
  } catch (const Error& error) {
    if (!may_be_recovered(error.code())) throw;
    const auto rolled_forward = rejoin(error.report(), &optimizer, lr);
    if (rolled_forward) fill_report(report, *rolled_forward);
    if (steps_done() <= report.step) {  // not where it failed after the commit, or is committed now
      report.committed = false;
      report.repeat = true;
      report.reason = membership_.reason;
      if (steps_done() < report.step) report.reason += ", from the snapshot of step " + std::to_string(steps_done());
    }
  }
  end_step_time(report);
  return report;
}

void Compute::end_step_time(StepReport& report) {
  report.step_ms = milliseconds_since(step_started_);
  if (active_track() != nullptr)  // the name that HolisticTraceAnalysis knows steps by
    trace_since(nanoseconds(step_started_), "ProfilerStep#" + std::to_string(report.step), TraceEvent::Kind::step);
  step_started_ = std::chrono::steady_clock::now();
}

}  // namespace troupe
