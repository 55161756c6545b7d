#include "tensor_io/layers/saved_tensors.hpp"

#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

thread_local SavedTensorStore* current_store = nullptr;

// Answers, and leaves the work to LibTorch's own: that starts the threads of its devices once in a process, for the
// engine that runs first.
class StoringEngine final : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current_store != nullptr ? current_store->keeper() : nullptr;
  }
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task, std::shared_ptr<torch::autograd::Node> root,
      torch::autograd::InputBuffer&& input) override {
    return get_base_engine().execute_with_graph_task(task, std::move(root), std::move(input));
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
    throw Error(ErrorCode::unavailable, "activation checkpointing",
                "the process uses an autograd engine other than LibTorch's",
                "use it in a program without a Python interpreter");
  }
}

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorStore* store) : HeldValue(current_store, store) { use_storing_engine(); }

}  // namespace troupe
