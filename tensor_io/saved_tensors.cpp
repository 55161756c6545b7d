#include "tensor_io/saved_tensors.hpp"

#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "tensor_io/error.hpp"

namespace troupe {
namespace {

thread_local SavedTensorStore* current_store = nullptr;

class StoringEngine final : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current_store != nullptr ? current_store->keeper() : nullptr;
  }
};

torch::autograd::Engine& storing_engine() {
  static auto* engine = new StoringEngine();  // never destroyed: graphs may die after static objects
  return *engine;
}

void use_storing_engine() {
  static const bool in_use = [] {
    const auto& before = torch::autograd::Engine::get_default_engine();
    if (&before != &torch::autograd::Engine::get_base_engine()) return false;
    torch::autograd::set_default_engine_stub(storing_engine);
    return true;
  }();
  if (!in_use) {
    throw Error(ErrorCode::unavailable, "activation checkpointing", "the process has another autograd engine than LibTorch's own",
                "use it in a program without a Python interpreter");
  }
}

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorStore* store) : before_(current_store) {
  use_storing_engine();
  current_store = store;
}

SavedTensorScope::~SavedTensorScope() { current_store = before_; }

}  // namespace troupe
