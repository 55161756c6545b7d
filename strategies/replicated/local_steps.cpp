#include "strategies/replicated/local_steps.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "actors/strategy/saved_state.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/kernels/pack.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {
namespace {

template <class Work>
void for_each_parameter(const NamedTensors& parameters, const std::vector<std::size_t>& indices, Work&& work) {
  std::int64_t offset = 0;
  for (const auto index : indices) {
    const auto parameter = parameters[index].second.detach();
    work(parameter, offset);
    offset += parameter.numel();
  }
}

// The parameter's elements of a flat tensor.
at::Tensor part(const at::Tensor& flat, std::int64_t offset, const at::Tensor& parameter) {
  return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

}  // namespace

void OuterOptions::check() const {
  const auto steps = [](std::int64_t n) { return std::to_string(n) + (n == 1 ? " step" : " steps"); };
  if (fragments > every) {
    throw Error(ErrorCode::usage, "diloco_fragments",
                std::to_string(fragments) + " fragments can't take turns within " + steps(every),
                "set it to at most sync_every, which is " + std::to_string(every));
  }
  if (overlap * fragments >= every && overlap > 0) {
    throw Error(ErrorCode::usage, "diloco_overlap",
                "a fragment would be under way for " + steps(overlap) + ", and the next one begins after " +
                    steps(every / fragments),
                "set it below sync_every / diloco_fragments");
  }
}

std::vector<std::int32_t> cut_fragments(const std::vector<std::int64_t>& numel, std::int64_t count) {
  const auto total = std::accumulate(numel.begin(), numel.end(), std::int64_t{0});
  std::vector<std::int32_t> fragment(numel.size(), 0);
  std::int64_t before = 0;
  for (std::size_t p = 0; p < numel.size(); ++p) {
    // By where its middle lies.
    if (total > 0)
      fragment[p] = static_cast<std::int32_t>(std::min(count - 1, (2 * before + numel[p]) * count / (2 * total)));
    before += numel[p];
  }
  return fragment;
}

LocalSteps::LocalSteps(StrategyContext context, OuterOptions outer)
    : ReplicatedStrategy(std::move(context)), outer_(outer), hook_(make_comm_hook(this->context().options)) {
  outer_.check();
  if (this->context().options.comm_hook == "powersgd") {
    throw Error(ErrorCode::usage, "comm_hook",
                "powersgd keeps an error for each bucket of gradients, and " + name() + " has no buckets",
                "set it to none, fp16 or bf16");
  }
}

void LocalSteps::make_fragments() {
  std::vector<std::int64_t> numel;
  for (const auto& [name, parameter] : parameters()) {
    if (!parameter.is_floating_point() || parameter.scalar_type() != parameters().front().second.scalar_type()) {
      throw Error(ErrorCode::usage, "parameter " + name, name + " has another dtype than the model's first parameter",
                  "train models of one dtype with " + this->name());
    }
    numel.push_back(parameter.numel());
  }
  const auto cut = cut_fragments(numel, outer_.fragments);
  std::map<std::int32_t, Fragment> made;
  for (std::size_t p = 0; p < cut.size(); ++p) made[cut[p]].parameters.push_back(p);
  for (auto& [index, fragment] : made) {
    std::int64_t elements = 0;
    for (const auto p : fragment.parameters) elements += numel[p];
    const auto options = parameters().front().second.options().requires_grad(false);
    fragment.outer = at::zeros({elements}, options);
    if (outer_.momentum > 0) fragment.momentum = at::zeros({elements}, options);
    fragment.next = context().switched_at.value_or(0) + outer_.every * (index + 1) / outer_.fragments;
    fragments_.push_back(std::move(fragment));
  }
}

void LocalSteps::take_outer_from_parameters(Fragment& fragment) {
  torch::NoGradGuard no_grad;
  for_each_parameter(parameters(), fragment.parameters, [&](const at::Tensor& parameter, std::int64_t offset) {
    part(fragment.outer, offset, parameter).copy_(parameter);
  });
}

void LocalSteps::begin_outer() {
  for (auto& fragment : fragments_) {
    take_outer_from_parameters(fragment);
    if (fragment.momentum.defined()) fragment.momentum.zero_();
  }
}

void LocalSteps::joined() {
  const bool first = fragments_.empty();
  if (first) {
    make_fragments();
    begin_outer();
  }
  const auto interrupted = std::exchange(under_way_, std::nullopt);
  const auto done = outer_steps_;
  for (std::size_t f = 0; f < fragments_.size(); ++f) {
    auto& fragment = fragments_[f];
    fragment.difference =
        context().gradient_communicator->allocate(fragment.outer.numel(), fragment.outer.scalar_type());
    BucketView view;
    view.is_last = true;
    view.label = "fragment " + std::to_string(f);
    view.flat = fragment.difference;
    for_each_parameter(parameters(), fragment.parameters, [&](const at::Tensor& parameter, std::int64_t offset) {
      view.gradients.push_back(part(fragment.difference, offset, parameter));
    });
    for (const auto p : fragment.parameters) view.names.push_back(parameters()[p].first);
    if (const auto device = view.flat.device(); !device.is_cpu()) {
      view.ready = std::make_shared<DeviceEvent>(device);
      view.reduced = std::make_shared<DeviceEvent>(device);
    }
    fragment.plan = std::make_shared<std::vector<BucketView>>(1, std::move(view));
  }
  if (!first || context().newcomer || context().switched_at) catch_up();
  if (interrupted && outer_steps_ == done) hook_->roll_back(interrupted->since);  // else the others have applied it
}

// Outer steps are a count, so the highest tells who has the last one. Newcomers get all by the heal.
void LocalSteps::catch_up() {
  met_ = false;
  auto& communicator = *context().program_communicator;
  const std::int64_t mine = context().newcomer ? -1 : outer_steps_;
  const auto counts = communicator.all_gather_bytes({reinterpret_cast<const char*>(&mine), sizeof mine}, "outer steps");
  std::int64_t highest = -1, lowest = std::numeric_limits<std::int64_t>::max();
  int ahead = 0;
  for (int r = 0; r < communicator.world_size(); ++r) {
    std::int64_t count = -1;
    std::memcpy(&count, counts[static_cast<std::size_t>(r)].data(), sizeof count);
    if (count < 0) continue;
    lowest = std::min(lowest, count);
    if (count > highest) {
      highest = count;
      ahead = r;
    }
  }
  if (highest < 0)
    throw Error(ErrorCode::state_lost, "recovery", "no rank has the outer parameters",
                "start again with --resume auto");
  if (lowest == highest) return;
  // What comes is kept apart until all of it is there: the rank that gives it may be lost meanwhile.
  const bool behind = mine < highest;
  auto got = fragments_;
  for (auto& fragment : got) {
    if (behind) fragment.outer = fragment.outer.clone();
    communicator.broadcast(fragment.outer, ahead, "outer parameters");
    if (!fragment.momentum.defined()) continue;
    if (behind) fragment.momentum = fragment.momentum.clone();
    communicator.broadcast(fragment.momentum, ahead, "outer momentum");
  }
  const auto counters = communicator.broadcast_bytes(nlohmann::json(state()).dump(), ahead, "outer steps");
  if (!behind) return;
  fragments_ = std::move(got);
  load_state(read_bounded_json(counters, "the outer steps of a rank", {}, [](const nlohmann::json& state) {
    return state.get<std::map<std::string, std::string>>();
  }));
  if (mine >= 0) take(fragments_.at(last_), outer_.overlap > 0 ? outer_.mixing : 0);
}

void LocalSteps::move_on(Fragment& fragment, std::int64_t done) const {
  if (fragment.next <= done) fragment.next += ((done - fragment.next) / outer_.every + 1) * outer_.every;
}

void LocalSteps::meet(std::int64_t done) {
  met_ = false;
  const auto& hook = context().options.comm_hook;
  if (context().world_size == 1 && outer_.momentum == 0 && outer_.lr == 1 && hook == "none") {  // the mean of one
    for (auto& fragment : fragments_) {
      if (fragment.next <= done) take_outer_from_parameters(fragment);
      move_on(fragment, done);
    }
    return;
  }
  if (under_way_ && done >= under_way_->apply_at) finish();
  std::size_t finished = 0;
  for (std::size_t f = 0; f < fragments_.size() && !under_way_; ++f) {
    if (fragments_[f].next > done) continue;
    start(f, done);
    if (outer_.overlap > 0) break;
    finish();
    ++finished;
  }
  met_ = finished == fragments_.size();
}

void LocalSteps::start(std::size_t index, std::int64_t done) {
  torch::NoGradGuard no_grad;
  auto& fragment = fragments_[index];
  for_each_parameter(parameters(), fragment.parameters, [&](const at::Tensor& parameter, std::int64_t offset) {
    auto difference = part(fragment.difference, offset, parameter);
    at::sub_out(difference, part(fragment.outer, offset, parameter), parameter);
  });
  hook_before_.clear();
  if (outer_.overlap > 0) {
    for (const auto& [name, tensor] : hook_->state()) hook_before_.emplace_back(name, tensor.clone());
  }
  under_way_ = UnderWay{index, done, done + outer_.overlap};
  if (const auto& ready = fragment.plan->front().ready)
    ready->record(DeviceStream::current(fragment.difference.device()));
  caf::anon_send(context().reducer, InstallPlan{fragment.plan, hook_});
  caf::anon_send(context().reducer, BucketReady{done, 0, steady_now_ns()});
}

void LocalSteps::finish() {
  torch::NoGradGuard no_grad;
  const auto what = *under_way_;
  (void)context().wait_reduced(what.since);
  const auto& view = fragments_[what.fragment].plan->front();
  if (view.reduced) DeviceStream::current(view.flat.device()).wait(*view.reduced);
  // On the CPU, where it costs no wait. All ranks see the same.
  if (context().options.comm_hook == "fp16" && view.flat.is_cpu() && !all_finite(view.flat)) {
    throw Error(ErrorCode::not_finite, view.label, "the ranks' mean change overflows comm_hook's type",
                "set comm_hook to bf16 or none, or lower lr or sync_every");
  }
  // Rank 0's, as after each step of ddp; shown below, once nothing can fail.
  const bool with_buffers = context().options.broadcast_buffers && !buffers().empty() && context().world_size > 1;
  if (with_buffers) buffers().stage(*context().program_communicator);
  auto& fragment = fragments_[what.fragment];
  auto& gradient = fragment.difference;
  if (fragment.momentum.defined()) {
    fragment.momentum.mul_(outer_.momentum).add_(gradient);
    gradient.add_(fragment.momentum, outer_.momentum);  // Nesterov, as torch.optim.SGD has it
  }
  fragment.outer.sub_(gradient, outer_.lr);
  take(fragment, outer_.overlap > 0 ? outer_.mixing : 0);
  if (with_buffers) buffers().commit();
  move_on(fragment, what.since);
  ++outer_steps_;
  last_ = what.fragment;
  under_way_.reset();
}

void LocalSteps::take(const Fragment& fragment, double kept) {
  torch::NoGradGuard no_grad;
  for_each_parameter(parameters(), fragment.parameters, [&](const at::Tensor& parameter, std::int64_t offset) {
    const auto outer = part(fragment.outer, offset, parameter);
    if (kept == 0) {
      parameter.copy_(outer);
    } else {
      parameter.mul_(kept).add_(outer, 1 - kept);
    }
  });
}

NamedTensors LocalSteps::strategy_tensors() {
  NamedTensors tensors;
  for (const auto& fragment : fragments_) {
    for_each_parameter(parameters(), fragment.parameters,
                       [&, p = fragment.parameters.begin()](const at::Tensor& parameter, std::int64_t offset) mutable {
                         const auto& name = parameters()[*p++].first;
                         tensors.emplace_back("outer." + name, part(fragment.outer, offset, parameter));
                         if (fragment.momentum.defined())
                           tensors.emplace_back("outer_momentum." + name, part(fragment.momentum, offset, parameter));
                       });
  }
  return tensors;
}

std::map<std::string, std::string> LocalSteps::state() {
  std::string next;
  for (const auto& fragment : fragments_) next += (next.empty() ? "" : " ") + std::to_string(fragment.next);
  return {{"local_steps.outer_steps", std::to_string(outer_steps_)},
          {"local_steps.last", std::to_string(last_)},
          {"local_steps.next", next}};
}

void LocalSteps::load_state(const std::map<std::string, std::string>& state) {
  const auto count = whole_in(state, "local_steps.outer_steps"), last = whole_in(state, "local_steps.last");
  const auto next = wholes_in(state, "local_steps.next");
  const auto all = fragments_.size();
  if (!count || !last || !next || next->size() != all || (all > 0 && static_cast<std::size_t>(*last) >= all)) {
    // Saved with another strategy or cut otherwise: they meet as if it had been so from the run's beginning.
    if (const auto done = whole_in(state, "step")) {
      for (auto& fragment : fragments_) move_on(fragment, *done);
    }
    return;
  }
  for (std::size_t f = 0; f < all; ++f) fragments_[f].next = (*next)[f];
  outer_steps_ = *count;
  last_ = static_cast<std::size_t>(*last);
}

void LocalSteps::read_state(const StateReader& state, Optimizer& optimizer) {
  ReplicatedStrategy::read_state(state, optimizer);
  // Of another strategy, or saved without momentum.
  const auto own = strategy_tensors();
  const bool complete = std::all_of(
      own.begin(), own.end(), [&](const auto& entry) { return state.entries().contains("strategy." + entry.first); });
  if (!complete) begin_outer();
}

std::string LocalSteps::describe() const {
  std::string text = name() + ": an outer step every " + std::to_string(outer_.every) + " steps";
  if (outer_.fragments > 1) text += " in " + std::to_string(outer_.fragments) + " fragments";
  if (outer_.overlap > 0) text += ", overlapped with " + std::to_string(outer_.overlap);
  return text + ", hook " + context().options.comm_hook;
}

OwnFigures::Figures LocalSteps::own_figures(std::int64_t done) const {
  auto next = std::numeric_limits<std::int64_t>::max();
  for (std::size_t f = 0; f < fragments_.size(); ++f) {
    auto fragment = fragments_[f];
    if (under_way_ && under_way_->fragment == f) move_on(fragment, under_way_->since);
    next =
        std::min(next, std::max(fragment.next, done + 1));  // at the latest behind the next step, or the one under way
  }
  return {{"outer_steps", static_cast<double>(outer_steps_)}, {"next_outer_in", static_cast<double>(next - done)}};
}

void register_local_steps() {
  register_strategy("local_sgd", "every rank trains its own copy; every sync_every steps all take their mean",
                    [](StrategyContext context) {
                      OuterOptions outer;
                      outer.every = context.options.sync_every;
                      return std::make_unique<LocalSteps>(std::move(context), outer);
                    });
  register_strategy("diloco",
                    "every rank trains its own copy; every sync_every steps their mean change is an outer gradient",
                    [](StrategyContext context) {
                      const auto& options = context.options;
                      const OuterOptions outer{options.sync_every,       options.outer_lr,       options.outer_momentum,
                                               options.diloco_fragments, options.diloco_overlap, options.diloco_mixing};
                      return std::make_unique<LocalSteps>(std::move(context), outer);
                    });
}

}  // namespace troupe
