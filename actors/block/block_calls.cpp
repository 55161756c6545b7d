#include "actors/block/block_calls.hpp"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "tensor_io/base/error.hpp"

namespace troupe {

struct BlockCalls::Shared {
  std::vector<std::shared_ptr<BlockHook>> hooks;
  std::shared_ptr<BlockRunner> runner;
};

/// A call as the graph's nodes know it.
struct BlockCalls::Record : std::enable_shared_from_this<Record> {
  BlockCall call;
  std::weak_ptr<Shared> owner;
  std::shared_ptr<Record> parent;    // the call that this one was made in
  std::function<void()> enter;       // the runner's
  std::weak_ptr<BackwardPass> pass;  // in which it has begun
  bool began = false, ended = false;

  bool inside(const Record* outer) const {
    for (auto* record = parent.get(); record != nullptr; record = record->parent.get()) {
      if (record == outer) return true;
    }
    return false;
  }
  void begin();
  void end();
};

namespace {

using Record = BlockCalls::Record;
using BackwardPass = BlockCalls::BackwardPass;

thread_local std::shared_ptr<Record> enclosing_call;
thread_local int recomputing = 0;
std::atomic<std::uint64_t> next_call{1};

}  // namespace

/// The calls that began in one run of the autograd engine. An engine callback ends those that no gradient of an input
/// has ended. It is owned by that callback, so that a backward that fails leaves nothing behind.
class BlockCalls::BackwardPass : public std::enable_shared_from_this<BackwardPass> {
 public:
  explicit BackwardPass(int id) : id_(id) {}
  ~BackwardPass() {
    for (const auto& record : open_) record->began = record->ended = false;
    std::lock_guard lock(mutex());
    running().erase(id_);
  }

  /// That of the engine's run on this thread.
  static std::shared_ptr<BackwardPass> current() {
    const int id = torch::autograd::get_current_graph_task_id();
    std::lock_guard lock(mutex());
    auto& entry = running()[id];
    auto pass = entry.lock();
    if (!pass) {
      pass = std::make_shared<BackwardPass>(id);
      entry = pass;
      torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->finish(); });
    }
    return pass;
  }

  void add(std::shared_ptr<Record> record) { open_.push_back(std::move(record)); }

  /// Ends what was called inside `outer`, innermost first: a node of the engine runs only after all that were made
  /// later than it.
  void finish_inside(const Record* outer) {
    for (std::size_t i = open_.size(); i-- > 0;) {
      if (!open_[i]->ended && open_[i]->inside(outer)) open_[i]->end();
    }
  }

 private:
  void finish() {
    for (std::size_t i = open_.size(); i-- > 0;) open_[i]->end();
    for (const auto& record : open_) record->began = record->ended = false;
    open_.clear();
  }
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static std::unordered_map<int, std::weak_ptr<BackwardPass>>& running() {
    static auto* instance =
        new std::unordered_map<int, std::weak_ptr<BackwardPass>>();  // passes may end after static objects
    return *instance;
  }

  int id_;
  std::vector<std::shared_ptr<Record>> open_;  // in the order in which they began
};

namespace {

struct RecordHolder : torch::CustomClassHolder {
  explicit RecordHolder(std::shared_ptr<Record> r) : record(std::move(r)) {}
  std::shared_ptr<Record> record;
};

/// Stands between a block's inputs and the block: one node for all of them, so that it runs once, when all their
/// gradients are there. As PyTorch's FSDP has it (Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
/// Parallel", VLDB 2023).
struct BlockInputs : torch::autograd::Function<BlockInputs> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                                                std::shared_ptr<Record> record) {
    context->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<RecordHolder>(std::move(record)));
    context->set_materialize_grads(false);
    return inputs.vec();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    static_cast<RecordHolder*>(context->saved_data["call"].toCapsule().get())->record->end();
    gradients.emplace_back();  // for the record
    return gradients;
  }
};

/// The hooks as they are now: one of them may take itself off.
std::vector<std::shared_ptr<BlockHook>> hooks_of(const std::weak_ptr<BlockCalls::Shared>& owner) {
  const auto shared = owner.lock();
  return shared ? shared->hooks : std::vector<std::shared_ptr<BlockHook>>{};
}

void watch_inputs(BlockBody& body, const std::shared_ptr<Record>& record) {
  std::vector<at::Tensor*> places;
  torch::autograd::variable_list inputs;
  body.visit_inputs([&](at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.requires_grad()) return;
    places.push_back(&tensor);
    inputs.push_back(tensor);
  });
  if (inputs.empty()) return;
  const auto passed = BlockInputs::apply(at::TensorList(inputs), record);
  for (std::size_t i = 0; i < places.size(); ++i) *places[i] = passed[i];
}

void watch_outputs(BlockBody& body, const std::shared_ptr<Record>& record) {
  body.visit_outputs([&](at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.requires_grad()) return;
    record->call.differentiable = true;
    // A leaf (a parameter that is handed out) keeps its hooks for ever: the hook goes on an alias.
    if (tensor.is_leaf()) tensor = tensor.view_as(tensor);
    tensor.register_hook([record](const at::Tensor&) { record->begin(); });
  });
}

void name_blocks_below(torch::nn::Module& module, const std::string& path,
                       std::vector<const torch::nn::Module*>& seen) {
  if (std::find(seen.begin(), seen.end(), &module) != seen.end()) return;
  seen.push_back(&module);
  if (auto* block = dynamic_cast<BlockCalls*>(&module)) block->set_block_name(path);
  for (const auto& child : module.named_children()) {
    name_blocks_below(*child.value(), path.empty() ? child.key() : path + "." + child.key(), seen);
  }
}

}  // namespace

void BlockCalls::Record::begin() {
  if (began) return;
  began = true;
  if (parent) parent->begin();
  const auto current = BackwardPass::current();
  pass = current;
  current->add(shared_from_this());
  for (const auto& hook : hooks_of(owner)) hook->before_backward(call);
  if (enter) enter();
}

void BlockCalls::Record::end() {
  if (!began || ended) return;
  if (const auto current = pass.lock()) current->finish_inside(this);
  ended = true;
  const auto hooks = hooks_of(owner);
  for (auto hook = hooks.rbegin(); hook != hooks.rend(); ++hook) (*hook)->after_backward(call);
}

BlockCalls::BlockCalls() : shared_(std::make_shared<Shared>()) {}
BlockCalls::~BlockCalls() = default;
BlockCalls::BlockCalls(const BlockCalls&) : BlockCalls() {}

BlockCalls::RecomputeScope::RecomputeScope() { ++recomputing; }
BlockCalls::RecomputeScope::~RecomputeScope() { --recomputing; }
bool BlockCalls::is_recomputing() noexcept { return recomputing > 0; }

void BlockCalls::update_quiet() { quiet_ = shared_->hooks.empty() && !shared_->runner; }

void BlockCalls::add_hook(std::shared_ptr<BlockHook> hook) {
  shared_->hooks.push_back(std::move(hook));
  update_quiet();
}

void BlockCalls::remove_hook(const BlockHook* hook) {
  std::erase_if(shared_->hooks, [&](const auto& other) { return other.get() == hook; });
  update_quiet();
}

void BlockCalls::set_runner(std::shared_ptr<BlockRunner> runner) {
  shared_->runner = std::move(runner);
  update_quiet();
}

const std::shared_ptr<BlockRunner>& BlockCalls::runner() const noexcept { return shared_->runner; }

std::string BlockCalls::block_name() const { return name_.empty() ? block_type() : name_; }

void BlockCalls::run_call(const std::shared_ptr<BlockBody>& body) {
  const auto record = std::make_shared<Record>();
  auto& call = record->call;
  call.block = this;
  call.id = next_call.fetch_add(1, std::memory_order_relaxed);
  call.recompute = is_recomputing();
  record->owner = shared_;
  record->parent = enclosing_call;
  const auto hooks = shared_->hooks;
  const auto runner = shared_->runner;
  for (const auto& hook : hooks) hook->before_forward(call);
  const bool watched = at::GradMode::is_enabled() && !call.recompute;
  if (watched && !hooks.empty()) watch_inputs(*body, record);
  for (const auto& hook : hooks) {
    body->visit_inputs([&](at::Tensor& tensor) {
      if (tensor.defined()) tensor = hook->map_input(call, tensor);
    });
  }
  {
    auto before = std::exchange(enclosing_call, record);  // the hooks of calls made below belong to calls inside it
    const auto leave = c10::make_scope_exit([&] { enclosing_call = std::move(before); });
    if (runner) {
      record->enter = runner->run(call, body);
    } else {
      body->run();
    }
  }
  for (auto hook = hooks.rbegin(); hook != hooks.rend(); ++hook) {
    body->visit_outputs([&](at::Tensor& tensor) {
      if (tensor.defined()) tensor = (*hook)->map_output(call, tensor);
    });
  }
  if (watched) watch_outputs(*body, record);
  for (auto hook = hooks.rbegin(); hook != hooks.rend(); ++hook) (*hook)->after_forward(call);
}

void name_blocks(torch::nn::Module& model) {
  std::vector<const torch::nn::Module*> seen;
  name_blocks_below(model, "", seen);
}

std::string plain_type_name(std::string_view name) {
  const auto colons = name.rfind("::", name.find('<'));
  if (colons != std::string_view::npos) name.remove_prefix(colons + 2);
  constexpr std::string_view kEnding = "Impl";
  if (name.size() > kEnding.size() && name.ends_with(kEnding)) name.remove_suffix(kEnding.size());
  return std::string(name);
}

}  // namespace troupe
