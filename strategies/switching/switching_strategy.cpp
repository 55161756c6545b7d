#include "strategies/switching/switching_strategy.hpp"

#include <algorithm>
#include <iterator>

#include <nlohmann/json.hpp>

#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/base/upper_median.hpp"
#include "tensor_io/layout/named_parameters.hpp"

namespace troupe {
namespace {

// Steps between two looks at the link, and outer steps where replicas train alone.
constexpr std::size_t kLookEvery = 20;
constexpr std::size_t kOuterSteps = 2;

double milliseconds(std::int64_t ns) { return 1e-6 * static_cast<double>(ns); }

// The mean over ranks of those that are numbers with a point, in memory of their own.
NamedTensors means_of(const NamedTensors& tensors, Communicator& lane, const char* what) {
  torch::NoGradGuard no_grad;
  NamedTensors means;
  for (const auto& [name, tensor] : tensors) {
    auto value = tensor.detach().clone(at::MemoryFormat::Contiguous);
    if (value.is_floating_point() && value.numel() > 0) lane.all_reduce(value.view(-1), ReduceOp::avg, what);
    means.emplace_back(name, std::move(value));
  }
  return means;
}

std::string outline(const NamedTensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) text += name + " " + std::to_string(tensor.numel()) + "\n";
  return text;
}

[[noreturn]] void refuse(const std::string& field, const std::string& reason) {
  throw Error(ErrorCode::usage, field, reason, "leave " + field + " out, or begin with ddp, local_sgd or diloco");
}

}  // namespace

Switching::Switching(StrategyContext context) : context_(std::move(context)) {
  const auto& options = context_.options;
  by_link_ = options.adapt == "link";
  const std::string field = by_link_ ? "adapt" : "switch_at";
  if (by_link_ && !options.switch_at.empty()) refuse("adapt", "switch_at says already when the strategy changes");
  if (const auto reason = unswitchable(options.strategy); !reason.empty()) refuse(field, reason);
  if (const auto wrong = parse_switches(options.switch_at, phases_); !wrong.empty()) refuse(field, wrong);
  phases_.insert(phases_.begin(), StrategyPhase{0, options.strategy, options.comm_hook});
  if (by_link_) {
    if (phases_[0].text() != "ddp")
      refuse("adapt", "it goes from ddp to ddp+bf16 and diloco, and the job begins with " + phases_[0].text());
    phases_ = {{0, "ddp", "none"}, {0, "ddp", "bf16"}, {0, "diloco", "none"}};
  }
  if (by_link_ && options.diloco_overlap > 0)
    throw Error(ErrorCode::usage, "adapt",
                "with diloco_overlap nobody waits for what travels, so nothing shows how slow the link is",
                "set diloco_overlap to 0, or say with switch_at when the strategy changes");
  phase_ = phases_[0];
  for (const auto& phase : phases_)
    (void)make_strategy(context_of(phase));  // what a strategy refuses is refused now, not at its step
}

StrategyContext Switching::context_of(const StrategyPhase& phase) const {
  auto context = context_;
  context.options.strategy = phase.strategy;
  context.options.comm_hook = phase.hook;
  context.options.switch_at.clear();
  context.options.adapt = "off";
  context.options.tune_buckets = context_.options.tune_buckets && phase.strategy == "ddp";
  return context;
}

std::string Switching::describe() const {
  auto text = inner_ ? inner_->describe() : phase_.text();
  if (by_link_) return text + "; adapts to the link";
  for (const auto& phase : phases_) {
    if (phase.from > 0) text += "; " + phase.text() + " from step " + std::to_string(phase.from);
  }
  return text;
}

NamedTensors Switching::replicated_tensors() {
  NamedTensors tensors;
  for (const auto& item : model_->named_parameters()) tensors.emplace_back(item.key(), item.value().detach());
  for (const auto& item : model_->named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

void Switching::attach(std::shared_ptr<torch::nn::Module> model) {
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
void Switching::agree() {
  const nlohmann::json mine{
      {"switches", context_.newcomer ? -1 : switches_}, {"strategy", phase_.strategy}, {"hook", phase_.hook}};
  std::int64_t most = -1;
  StrategyPhase found = phase_;
  for (const auto& text : context_.program_lane->all_gather_bytes(mine.dump(), "strategy")) {
    const auto other = nlohmann::json::parse(text);
    if (other["switches"].get<std::int64_t>() <= most) continue;
    most = other["switches"].get<std::int64_t>();
    found = {0, other["strategy"].get<std::string>(), other["hook"].get<std::string>()};
  }
  if (most < 0)
    throw Error(ErrorCode::state_lost, "recovery", "no rank has the model", "start again with --resume latest");
  if (context_.newcomer || most == switches_) {
    switches_ = most;
    phase_ = found;
    return;
  }
  if (!staged_ && !trained_) {  // interrupted in a resume, which comes again
    switches_ = most;
    phase_ = found;
    return;
  }
  if (!staged_)
    throw Error(ErrorCode::internal, "recovery", "this rank has missed a switch of strategy",
                "start again with --resume latest");
  show();
}

void Switching::rejoin(StrategyContext context) {
  context_ = std::move(context);
  window_ = {};
  step_ended_ns_ = 0;
  move_sync_batchnorm(*model_, context_.program_lane);
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
void Switching::install(std::int64_t done) {
  inner_.reset();
  auto context = context_of(phase_);
  context.switched_at = done;
  auto inner = make_strategy(std::move(context));
  inner->attach(model_);
  inner_ = std::move(inner);
  installed_ = phase_;
}

void Switching::begin_step(std::int64_t step) {
  trained_ = true;
  step_ = step;
  inner_->begin_step(step);
}

GradientSummary Switching::reduce_gradients() {
  const auto began = steady_now_ns();
  auto summary = inner_->reduce_gradients();
  step_exposed_ms_ = milliseconds(steady_now_ns() - began);
  step_wire_ms_ = summary.reduced.busy_ms;
  return summary;
}

void Switching::roll_back() {
  step_ended_ns_ = 0;
  if (inner_) inner_->roll_back();
}

void Switching::after_update() {
  const auto began = steady_now_ns();
  inner_->after_update();
  measure(milliseconds(steady_now_ns() - began));
  std::string why;
  const auto next = wanted(step_ + 1, why);
  if (!next.same_as(phase_) && !(given_up_ && next.same_as(*given_up_))) switch_to(next, why, step_ + 1);
}

LinkLevel Switching::level() const {
  if (phase_.strategy != "ddp") return LinkLevel::alone;
  return phase_.hook == "none" ? LinkLevel::whole : LinkLevel::half;
}

void Switching::measure(double after_update_ms) {
  if (!by_link_) return;
  const auto now = steady_now_ns();
  const auto step_ms = step_ended_ns_ == 0 ? 0 : milliseconds(now - step_ended_ns_);
  step_ended_ns_ = now;
  bool met = false;
  if (!replicas_equal()) {
    auto outer_steps = inner_->state().at("local_steps.outer_steps");
    met = outer_steps != outer_steps_;
    outer_steps_ = std::move(outer_steps);
  }
  if (step_ms == 0) return;  // the first one of a generation, or after a switch
  if (replicas_equal()) {
    window_.step_ms.push_back(step_ms);
    window_.exposed_ms.push_back(step_exposed_ms_);
    window_.wire_ms.push_back(step_wire_ms_);
    return;
  }
  if (met) window_.wire_ms.push_back(after_update_ms * static_cast<double>(context_.options.diloco_fragments));
  window_.step_ms.push_back(met ? step_ms - after_update_ms : step_ms);
}

// Which strategy the steps to come are for. Collective where it depends on the link, at the same steps on all ranks.
StrategyPhase Switching::wanted(std::int64_t done, std::string& why) {
  if (!by_link_) {
    why = "as switch_at says";
    return phase_after(phases_, done);
  }
  const bool look = replicas_equal() ? window_.step_ms.size() >= kLookEvery : window_.wire_ms.size() >= kOuterSteps;
  if (context_.world_size == 1 || !look) return phase_;
  const auto times = torch::tensor(
      {upper_median(window_.step_ms), upper_median(window_.exposed_ms), upper_median(window_.wire_ms)}, at::kDouble);
  window_.step_ms.clear();
  window_.exposed_ms.clear();
  window_.wire_ms.clear();
  context_.program_lane->all_reduce(times, ReduceOp::min, "times of the link");
  const auto* least = times.const_data_ptr<double>();
  auto choice = choose_level(level(), {least[0], least[1], least[2]});
  why = std::move(choice.why);
  if (choice.level == level()) return phase_;
  return phases_[static_cast<std::size_t>(choice.level)];
}

void Switching::switch_to(const StrategyPhase& next, const std::string& why, std::int64_t done) {
  const auto was = phase_;
  const auto carried = inner_->state();
  inner_->finish_pending();
  next_ = next;
  next_why_ = why;
  if (!stage()) {
    given_up_ = next;
    notices_.push_back("step " + std::to_string(done) + ": the strategy stays " + was.text() +
                       ": the ranks' optimizers keep state of different parameters, which has no mean");
    return;
  }
  fault_point("stage", step_);
  context_.program_lane->barrier("switch of strategy");
  fault_point("switch", step_);
  show();
  fault_point("switched", step_);
  install(done);
  if (was.strategy == "ddp" && phase_.strategy == "ddp")
    inner_->load_state(carried);  // the measured order of its buckets
  window_ = {};
  step_ended_ns_ = 0;
}

// What all ranks have to have before any of them may switch. False, on all alike: it can't be had.
bool Switching::stage() {
  staged_model_.clear();
  staged_optimizer_.clear();
  auto& lane = *context_.program_lane;
  if (!inner_->replicas_equal() && context_.world_size > 1) {
    const auto optimizer = optimizer_->state();
    const auto mine = outline(optimizer);
    for (const auto& other : lane.all_gather_bytes(mine, "optimizer state")) {
      if (other != mine) return false;
    }
    staged_model_ = means_of(replicated_tensors(), lane, "mean of the replicas");
    staged_optimizer_ = means_of(optimizer, lane, "mean of the optimizers");
  }
  staged_ = true;
  return true;
}

void Switching::show() {
  torch::NoGradGuard no_grad;
  const auto live = replicated_tensors();
  for (std::size_t i = 0; i < staged_model_.size(); ++i) live[i].second.copy_(staged_model_[i].second);
  if (!staged_optimizer_.empty()) optimizer_->load_state(staged_optimizer_);
  staged_model_.clear();
  staged_optimizer_.clear();
  staged_ = false;
  notices_.push_back("step " + std::to_string(step_ + 1) + ": the strategy is now " + next_.text() +
                     ", before it was " + phase_.text() + " (" + next_why_ + ")");
  phase_ = next_;
  ++switches_;
  if (inner_) {
    auto last = inner_->take_notices();
    notices_.insert(notices_.end(), std::make_move_iterator(last.begin()), std::make_move_iterator(last.end()));
  }
  inner_.reset();  // whatever comes now, it is not for the strategy before
}

std::vector<std::string> Switching::take_notices() {
  auto notices = inner_ ? inner_->take_notices() : std::vector<std::string>{};
  notices.insert(notices.end(), std::make_move_iterator(notices_.begin()), std::make_move_iterator(notices_.end()));
  notices_.clear();
  return notices;
}

std::map<std::string, std::string> Switching::state() {
  auto state = inner_ ? inner_->state() : std::map<std::string, std::string>{};
  state["switching.strategy"] = phase_.strategy;
  state["switching.hook"] = phase_.hook;
  state["switching.switches"] = std::to_string(switches_);
  return state;
}

// A checkpoint's strategy, which may be another one than this run began with. Collective then.
void Switching::load_state(const std::map<std::string, std::string>& state) {
  const auto strategy = state.find("switching.strategy"), hook = state.find("switching.hook"),
             count = state.find("switching.switches");
  if (strategy != state.end() && hook != state.end() && count != state.end() &&
      unswitchable(strategy->second).empty()) {
    const StrategyPhase found{0, strategy->second, hook->second};
    switches_ = std::stoll(count->second);
    if (!found.same_as(phase_)) {
      phase_ = found;
      install(0);
      torch::NoGradGuard no_grad;
      const auto own = inner_->own_tensors();
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
  inner_->load_state(state);
}

void Switching::read_state(const StateReader& state, Optimizer& optimizer) {
  inner_->read_state(state, optimizer);
  constexpr std::string_view kPrefix = "strategy.";
  saved_own_.clear();
  for (const auto& [name, entry] : state.entries()) {
    if (name.starts_with(kPrefix)) saved_own_[name.substr(kPrefix.size())] = state.read(name);
  }
}

void register_switching() {
  register_strategy_switch([](StrategyContext context) { return std::make_unique<Switching>(std::move(context)); });
}

}  // namespace troupe
