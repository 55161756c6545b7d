#include "strategies/switching/switching_strategy.hpp"

#include <algorithm>

#include "actors/strategy/graph_capture.hpp"
#include "actors/strategy/late_voting.hpp"
#include "actors/strategy/meetings.hpp"
#include "strategies/replicated/model_sync.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/layout/named_parameters.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {
namespace {

std::string outline(const NamedTensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) text += name + " " + std::to_string(tensor.numel()) + "\n";
  return text;
}

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(ErrorCode::usage, "switch_at", reason, "leave switch_at out, or begin with ddp, local_sgd or diloco");
}

}  // namespace

SwitchingStrategy::SwitchingStrategy(StrategyContext context) : context_(std::move(context)) {
  const auto& options = context_.options;
  if (const auto reason = unswitchable(options.strategy); !reason.empty()) refuse(reason);
  if (const auto wrong = parse_switches(options.switch_at, phases_); !wrong.empty()) refuse(wrong);
  phases_.insert(phases_.begin(), StrategyPhase{0, options.strategy, options.comm_hook});
  phase_ = phases_[0];
  for (const auto& phase : phases_)
    (void)make_strategy(context_of(phase));  // what a strategy refuses is refused now, not at its step
}

StrategyContext SwitchingStrategy::context_of(const StrategyPhase& phase) const {
  auto context = context_;
  context.options.strategy = phase.strategy;
  context.options.comm_hook = phase.hook;
  context.options.switch_at.clear();
  return context;
}

StrategyCapabilities SwitchingStrategy::capabilities() {
  auto all = own_capabilities();
  all.refuse<LateVoting>("waits for the vote before it switches");
  all.refuse<GraphCapture>("with switch_at moves to different memory while the job runs");
  return inner_ ? all.over(inner_->capabilities()) : all;
}

std::string SwitchingStrategy::describe() const {
  auto text = inner_ ? inner_->describe() : phase_.text();
  for (const auto& phase : phases_) {
    if (phase.from > 0) text += "; " + phase.text() + " from step " + std::to_string(phase.from);
  }
  return text;
}

void SwitchingStrategy::attach(std::shared_ptr<torch::nn::Module> model) {
  model_ = std::move(model);
  const auto parameters = unique_parameters(*model_);  // as the strategies number them
  for (const auto& [name, parameter] : parameters) names_.push_back(name);
  const bool differ =
      std::any_of(phases_.begin(), phases_.end(), [](const auto& phase) { return phase.strategy != "ddp"; });
  std::optional<at::ScalarType> dtype;
  for (const auto& [name, parameter] : parameters) {  // else only the step of the switch would tell
    if (!differ || !parameter.requires_grad()) continue;
    if (!dtype) dtype = parameter.scalar_type();
    if (parameter.scalar_type() == *dtype) continue;
    throw Error(ErrorCode::usage, "parameter " + name, name + " has another dtype than the model's first parameter",
                "train models of one dtype with local_sgd and diloco");
  }
  agree();
  inner_ = make_strategy(context_of(phase_));
  installed_ = phase_;
  inner_->attach(model_);
}

// Who has done the most switches has the strategy that all go on with. Collective.
void SwitchingStrategy::agree() {
  const nlohmann::json mine{
      {"switches", context_.newcomer ? -1 : switches_}, {"strategy", phase_.strategy}, {"hook", phase_.hook}};
  std::int64_t most = -1;
  StrategyPhase found = phase_;
  for (const auto& text : context_.program_communicator->all_gather_bytes(mine.dump(), "strategy")) {
    const auto [switches, strategy, hook] =
        read_bounded_json(text, "the strategy that a rank is at", {}, [](const nlohmann::json& other) {
          return std::tuple(other.at("switches").get<std::int64_t>(), other.at("strategy").get<std::string>(),
                            other.at("hook").get<std::string>());
        });
    if (switches <= most) continue;
    most = switches;
    found = {0, strategy, hook};
  }
  if (most < 0)
    throw Error(ErrorCode::state_lost, "recovery", "no rank has the model", "start again with --resume auto");
  const bool resumes = !staged_ && !trained_;  // interrupted in it, and it comes again
  if (context_.newcomer || most == switches_ || resumes) {
    switches_ = most;
    phase_ = found;
    return;
  }
  if (!staged_)
    throw Error(ErrorCode::internal, "recovery", "this rank has missed a switch of strategy",
                "start again with --resume auto");
  show();
}

void SwitchingStrategy::rejoin(StrategyContext context) {
  context_ = std::move(context);
  agree();
  staged_ = false;
  staged_model_.clear();
  staged_optimizer_.clear();
  given_up_.reset();
  if (!inner_ || !installed_.same_as(phase_)) {
    install(trained_ ? step_ + 1 : 0);
    return;
  }
  inner_->rejoin(context_of(phase_));
}

// The strategy of phase_ in the place of the one before, whose hooks leave the parameters first. Collective.
void SwitchingStrategy::install(std::int64_t done) {
  inner_.reset();
  auto context = context_of(phase_);
  context.switched_at = done;
  auto inner = make_strategy(std::move(context));
  inner->attach(model_);
  inner_ = std::move(inner);
  installed_ = phase_;
}

void SwitchingStrategy::begin_step(std::int64_t step) {
  trained_ = true;
  step_ = step;
  inner_->begin_step(step);
}

void SwitchingStrategy::after_update() {
  inner_->after_update();
  const auto next = phase_after(phases_, step_ + 1);
  if (!next.same_as(phase_) && !(given_up_ && next.same_as(*given_up_))) switch_to(next, step_ + 1);
}

void SwitchingStrategy::switch_to(const StrategyPhase& next, std::int64_t done) {
  const auto was = phase_;
  const auto carried = inner_->saved_state().state();
  if (auto* meetings = inner_->capability<Meetings>()) meetings->finish_pending();
  next_ = next;
  if (!stage()) {
    given_up_ = next;
    context_.announce("step " + std::to_string(done) + ": the strategy stays " + was.text() +
                      ": the ranks' optimizers hold state of different parameters, which can't be averaged");
    return;
  }
  fault_point("stage", step_);
  context_.program_communicator->barrier("switch of strategy");
  fault_point("switch", step_);
  show();
  fault_point("switched", step_);
  install(done);
  if (was.strategy == "ddp" && phase_.strategy == "ddp")
    inner_->saved_state().load_state(carried);  // the measured order of its buckets
}

// What all ranks have to have before any of them may switch. False, on all alike: it can't be had.
bool SwitchingStrategy::stage() {
  staged_model_.clear();
  staged_optimizer_.clear();
  auto& communicator = *context_.program_communicator;
  if (!inner_->replicas_equal() && context_.world_size > 1) {
    const auto optimizer = optimizer_->state();
    const auto mine = outline(optimizer);
    for (const auto& other : communicator.all_gather_bytes(mine, "optimizer state")) {
      if (other != mine) return false;
    }
    staged_model_ = means_over_ranks(replicated_tensors(), communicator, "mean of the replicas");
    staged_optimizer_ = means_over_ranks(optimizer, communicator, "mean of the optimizers");
  }
  staged_ = true;
  return true;
}

void SwitchingStrategy::show() {
  torch::NoGradGuard no_grad;
  const auto live = replicated_tensors();
  for (std::size_t i = 0; i < staged_model_.size(); ++i) live[i].second.copy_(staged_model_[i].second);
  if (!staged_optimizer_.empty()) optimizer_->load_state(staged_optimizer_);
  staged_model_.clear();
  staged_optimizer_.clear();
  staged_ = false;
  context_.announce("step " + std::to_string(step_ + 1) + ": the strategy is now " + next_.text() + ", before it was " +
                    phase_.text());
  phase_ = next_;
  ++switches_;
  inner_.reset();  // whatever comes now, it is not for the strategy before
}

std::map<std::string, std::string> SwitchingStrategy::state() {
  auto state = inner_ ? inner_->saved_state().state() : std::map<std::string, std::string>{};
  state["switching.strategy"] = phase_.strategy;
  state["switching.hook"] = phase_.hook;
  state["switching.switches"] = std::to_string(switches_);
  return state;
}

// A checkpoint's strategy, which may be another one than this run began with. Collective then.
void SwitchingStrategy::load_state(const std::map<std::string, std::string>& state) {
  const auto strategy = state.find("switching.strategy"), hook = state.find("switching.hook");
  const auto count = whole_in(state, "switching.switches");
  if (strategy != state.end() && hook != state.end() && count && unswitchable(strategy->second).empty()) {
    const StrategyPhase found{0, strategy->second, hook->second};
    switches_ = *count;
    if (!found.same_as(phase_)) {
      phase_ = found;
      install(0);
      torch::NoGradGuard no_grad;
      const auto own = inner_->strategy_tensors();
      const bool complete = std::all_of(own.begin(), own.end(), [&](const auto& entry) {
        const auto saved = saved_own_.find(entry.first);
        return saved != saved_own_.end() && saved->second.sizes() == entry.second.sizes();
      });
      for (const auto& [name, tensor] : own) {
        if (complete) tensor.copy_(saved_own_.at(name));
      }
    }
  }
  saved_own_.clear();
  inner_->saved_state().load_state(state);
}

void SwitchingStrategy::read_state(const StateReader& state, Optimizer& optimizer) {
  inner_->saved_state().read_state(state, optimizer);
  constexpr std::string_view kPrefix = "strategy.";
  saved_own_.clear();
  for (const auto& [name, entry] : state.entries()) {
    if (name.starts_with(kPrefix)) saved_own_[name.substr(kPrefix.size())] = state.read(name);
  }
}

void register_switching() {
  register_strategy_switch(
      [](StrategyContext context) { return std::make_unique<SwitchingStrategy>(std::move(context)); });
}

}  // namespace troupe
