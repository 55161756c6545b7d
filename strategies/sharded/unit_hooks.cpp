#include "strategies/sharded/unit_hooks.hpp"

namespace troupe {

struct UnitHooks::State {
  std::shared_ptr<UnitGathers> gathers;
  Options options;
  std::vector<int> calls;        // by unit: forwards under way, one in the other
  std::vector<int> backwards;    // by unit: calls whose backward is still to come
  std::int32_t last = -1;        // unit whose forward ended last in this forward ...
  std::int32_t usual_last = -1;  // ... and in the one before
};

class UnitHooks::Hook final : public BlockHook {
 public:
  Hook(std::shared_ptr<State> state, std::int32_t unit) : state_(std::move(state)), unit_(unit) {}

  void before_forward(const BlockCall& call) override {
    if (!state_->gathers) return;
    state_->gathers->need(unit_);
    if (!call.recompute) ++state_->calls[index()];
  }

  at::Tensor map_input(const BlockCall&, const at::Tensor& input) override {
    const auto dtype = state_->options.input_dtype;
    return dtype != at::ScalarType::Undefined && input.is_floating_point() && input.scalar_type() != dtype
               ? input.to(dtype)
               : input;
  }

  void after_forward(const BlockCall& call) override {
    if (!state_->gathers || call.recompute) return;
    auto& state = *state_;
    --state.calls[index()];
    state.last = unit_;
    const bool trains = at::GradMode::is_enabled();
    if (call.differentiable) ++state.backwards[index()];
    if (state.calls[index()] > 0 || state.options.keep_units) return;
    if (trains && (!state.options.reshard_after_forward || !call.differentiable || unit_ == state.usual_last)) return;
    state.gathers->release(unit_);
  }

  void before_backward(const BlockCall&) override {
    if (state_->gathers) state_->gathers->need(unit_);
  }

  void after_backward(const BlockCall&) override {
    if (state_->gathers && --state_->backwards[index()] == 0 && !state_->options.keep_units)
      state_->gathers->release(unit_);
  }

 private:
  std::size_t index() const noexcept { return static_cast<std::size_t>(unit_); }

  std::shared_ptr<State> state_;
  std::int32_t unit_;
};

UnitHooks::UnitHooks(std::shared_ptr<UnitGathers> gathers, Options options, std::size_t units)
    : state_(std::make_shared<State>()) {
  state_->gathers = std::move(gathers);
  state_->options = options;
  state_->calls.resize(units);
  state_->backwards.resize(units);
}

UnitHooks::~UnitHooks() {
  for (auto& [module, hook] : hooks_) {
    if (const auto alive = module.lock()) hook.first->remove_hook(hook.second.get());
  }
  state_->gathers.reset();  // hooks of a graph that outlives us find nothing to do
}

void UnitHooks::add(BlockCalls& block, std::int32_t unit) {
  auto hook = std::make_shared<Hook>(state_, unit);
  block.add_hook(hook);
  hooks_.push_back({block.block_module().shared_from_this(), {&block, std::move(hook)}});
}

void UnitHooks::end_backward() {
  auto& state = *state_;
  state.usual_last = state.last;
  state.last = -1;
  std::fill(state.calls.begin(), state.calls.end(), 0);
  std::fill(state.backwards.begin(), state.backwards.end(), 0);
  if (state.gathers) state.gathers->release_all();
}

}  // namespace troupe
