#include "actors/strategy/strategy.hpp"

#include <algorithm>

#include "actors/strategy/evaluation.hpp"
#include "actors/strategy/known_parts.hpp"
#include "actors/strategy/placement.hpp"
#include "actors/strategy/saved_state.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/base/nearest_name.hpp"
#include "tensor_io/base/registry.hpp"
#include "tensor_io/base/steady_time.hpp"

namespace troupe {
namespace {

Registry<StrategyFactory>& strategy_registry() {
  static Registry<StrategyFactory> registry;
  return registry;
}

StrategyFactory& strategy_switch() {
  static StrategyFactory factory;
  return factory;
}

Registry<CommHookFactory>& hook_registry() {
  static Registry<CommHookFactory> registry;
  return registry;
}

}  // namespace

std::shared_ptr<Communicator> StrategyContext::split(Communicator& from, int color, int key,
                                                     const std::string& name) const {
  std::shared_ptr<Communicator> communicator = from.split(color, key);
  if (communicator) register_communicator(name, communicator);
  return communicator;
}

std::shared_ptr<Communicator> StrategyContext::make_communicator(const std::string& name) const {
  return split(*program_communicator, 0, rank, name);
}

// What a message costs is what nobody computes in: a bucket that lies in the mailbox while backward goes on costs
// nothing.
void GradientSummary::await(const StrategyContext& context, std::int64_t step) {
  const auto waiting = steady_now_ns();
  reduced = context.wait_reduced(step);
  const auto queued = std::max<std::int64_t>(0, reduced.taken_ns - std::max(reduced.awaited_ns, waiting));
  const auto answered = steady_now_ns() - std::max(reduced.finished_ns, waiting);
  message_us = static_cast<double>(queued + answered) / 1e3;
}

Strategy::Strategy() = default;
Strategy::~Strategy() = default;

const StrategyCapabilities& Strategy::own_capabilities() {
  if (!own_) own_ = StrategyCapabilities::of(*this);
  return *own_;
}

SavedState& Strategy::saved_state() {
  if (auto* own = capability<SavedState>()) return *own;
  if (!replicated_state_) replicated_state_ = std::make_unique<ReplicatedState>(*this);
  return *replicated_state_;
}

Evaluation& Strategy::evaluation() {
  // NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor): nothing deletes it
  class NothingToDo final : public Evaluation {};
  static NothingToDo nothing_to_do;
  auto* own = capability<Evaluation>();
  return own == nullptr ? nothing_to_do : *own;
}

void register_strategy(const std::string& name, const std::string& description, StrategyFactory factory) {
  strategy_registry().add(name, description, std::move(factory));
}

std::unique_ptr<Strategy> make_strategy(StrategyContext context) {
  const auto factory = strategy_registry().find(context.options.strategy);
  if (!factory) {
    throw Error(ErrorCode::usage, "strategy", "there is no strategy '" + context.options.strategy + "'",
                remedy_for_name(context.options.strategy, strategy_registry().sorted_names()));
  }
  const auto options = context.options;
  const bool switches = !options.switch_at.empty();
  if (options.early_update && (switches || options.strategy != "ddp")) {
    throw Error(ErrorCode::usage, "early_update",
                switches ? "switch_at changes what updates the model"
                         : "strategy " + options.strategy + " has its own way to update",
                "train with ddp alone, or leave it out");
  }
  if (switches) {
    if (strategy_switch()) return strategy_switch()(std::move(context));
    throw Error(ErrorCode::usage, "switch_at", "this program has no strategies that switch", "call register_switching");
  }
  auto strategy = (*factory)(std::move(context));
  if (!options.mesh.empty() && strategy->capability<Placement>() == nullptr) {
    throw Error(ErrorCode::usage, "mesh",
                "strategy " + options.strategy + " has no mesh, and mesh is '" + options.mesh + "'",
                "set strategy to pipeline or tensor_parallel, or leave mesh empty");
  }
  return strategy;
}

std::map<std::string, std::string> strategies() {
  std::map<std::string, std::string> known;
  for (const auto& [name, description] : strategy_registry().names()) known[name] = description;
  return known;
}

std::vector<RegisteredName> known_strategies() { return strategy_registry().sorted_names(); }

std::vector<RegisteredName> known_comm_hooks() { return hook_registry().sorted_names(); }

void register_strategy_switch(StrategyFactory factory) { strategy_switch() = std::move(factory); }

void register_comm_hook(const std::string& name, CommHookFactory factory) {
  hook_registry().add(name, {}, std::move(factory));
}

std::shared_ptr<CommHook> make_comm_hook(const StrategyOptions& options) {
  const auto factory = hook_registry().find(options.comm_hook);
  if (!factory) {
    throw Error(ErrorCode::usage, "comm_hook", "there is no communication hook '" + options.comm_hook + "'",
                remedy_for_name(options.comm_hook, hook_registry().sorted_names()));
  }
  return (*factory)(options);
}

}  // namespace troupe
