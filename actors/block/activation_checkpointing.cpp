#include "actors/block/activation_checkpointing.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "actors/block/wrap_policy.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/base/held_value.hpp"
#include "tensor_io/base/number_of.hpp"
#include "tensor_io/layers/forward_replay.hpp"
#include "tensor_io/layers/saved_tensors.hpp"

namespace troupe {
namespace {

/// A checkpointed forward or recompute is under way on this thread: what is called in it belongs to it.
thread_local bool inside_frame = false;

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::int64_t>(tensor._version());
}

/// Where a forward works: where its inputs are, else its parameters, unless that is the CPU.
c10::Device device_of(BlockBody& body, const torch::nn::Module& module) {
  c10::Device device(at::kCPU);
  body.visit_inputs([&](at::Tensor& tensor) {
    if (device.is_cpu() && tensor.defined()) device = tensor.device();
  });
  if (!device.is_cpu()) return device;
  for (const auto& parameter : module.parameters()) {
    if (!parameter.is_cpu()) return parameter.device();
  }
  return device;
}

/// One call of a checkpointed block: its inputs, and in backward what its nodes would have saved.
class Frame : public std::enable_shared_from_this<Frame> {
 public:
  Frame(std::string block, torch::nn::Module& module, std::shared_ptr<BlockBody> body)
      : block_(std::move(block)), module_(&module), body_(std::move(body)) {}

  void run();
  /// A gradient enters the block.
  void recompute_once() {
    if (body_ && slots_.empty()) recompute();
  }

 private:
  class Keeper;
  class Capture;
  class KeepNothing;
  class CaptureAll;
  struct Saved {
    std::vector<std::int64_t> shape;
    at::ScalarType dtype;
  };

  void recompute();
  void check_inputs(const char* when);
  [[noreturn]] void differs(const std::string& how) const;
  std::size_t note(const at::Tensor& tensor) {
    saved_.push_back({tensor.sizes().vec(), tensor.scalar_type()});
    ++alive_;
    return saved_.size() - 1;
  }
  void capture(const at::Tensor& tensor);
  at::Tensor take(std::size_t index) {
    recompute_once();
    if (index >= slots_.size()) differs("backward reached a forward that failed");
    return slots_[index];
  }
  void drop(std::size_t index) {
    if (index < slots_.size()) slots_[index].reset();
    if (--alive_ == 0 && ran_) release();
  }
  void release() {
    body_.reset();
    slots_.clear();
  }

  std::string block_;
  torch::nn::Module* module_;
  std::shared_ptr<BlockBody> body_;  // gone once the graph has dropped all that it saved
  ForwardReplay replay_;
  std::vector<std::int64_t> versions_;  // of the inputs
  std::vector<Saved> saved_;            // what the first run's nodes asked to keep, in order
  std::size_t alive_ = 0;               // of them, not dropped yet
  std::vector<at::Tensor> slots_;       // the same tensors from the second run
  bool ran_ = false, training_ = false;
};

/// In the place of a tensor that a node saves: its number.
class Frame::Keeper final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Keeper(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  ~Keeper() override {
    if (packed_) frame_->drop(index_);
  }
  void call_pack_hook(const at::Tensor& tensor) override {
    index_ = frame_->note(tensor);
    packed_ = true;
  }
  at::Tensor call_unpack_hook() override { return frame_->take(index_); }

 private:
  std::shared_ptr<Frame> frame_;
  std::size_t index_ = 0;
  bool packed_ = false;
};

/// In the second run: hands what a node saves to the frame, and keeps it for the case that forward itself
/// differentiates.
class Frame::Capture final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Capture(Frame& frame) : frame_(&frame) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();
    frame_->capture(tensor_);
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  Frame* frame_;  // outlives the second run's graph
  at::Tensor tensor_;
};

class Frame::KeepNothing final : public SavedTensorStore {
 public:
  explicit KeepNothing(Frame& frame) : frame_(frame) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> keeper() override {
    return std::make_unique<Keeper>(frame_.shared_from_this());
  }

 private:
  Frame& frame_;
};

class Frame::CaptureAll final : public SavedTensorStore {
 public:
  explicit CaptureAll(Frame& frame) : frame_(frame) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> keeper() override { return std::make_unique<Capture>(frame_); }

 private:
  Frame& frame_;
};

void Frame::run() {
  body_->keep();
  body_->visit_inputs([&](at::Tensor& tensor) { versions_.push_back(tensor.defined() ? version_of(tensor) : 0); });
  training_ = module_->is_training();
  try {
    const HeldValue inside(inside_frame, true);
    const ForwardReplay::Recording recording(replay_, *module_, device_of(*body_, *module_));
    KeepNothing store(*this);
    const SavedTensorScope scope(&store);
    body_->run();
    check_inputs("in forward");
  } catch (...) {
    release();  // an input that was changed in place belongs to the graph, whose nodes hold this frame
    throw;
  }
  // The inputs' values, without the graph that they came from.
  body_->visit_inputs([](at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const bool required = tensor.requires_grad();
    tensor = tensor.detach();
    if (required) tensor.set_requires_grad(true);
  });
  ran_ = true;
  if (alive_ == 0) release();
}

void Frame::differs(const std::string& how) const {
  throw Error(ErrorCode::usage, "activation checkpointing of " + block_, how,
              "make its forward depend only on arguments, parameters and buffers, or leave the block out of "
              "activation_checkpointing");
}

void Frame::check_inputs(const char* when) {
  std::size_t index = 0;
  body_->visit_inputs([&](at::Tensor& tensor) {
    const auto version = versions_[index++];
    if (tensor.defined() && version_of(tensor) != version) {
      differs("input tensor " + std::to_string(index) + " was changed in place " + when +
              ", so forward can't be recomputed from it");
    }
  });
}

void Frame::capture(const at::Tensor& tensor) {
  const auto index = slots_.size();
  if (ran_ && (index >= saved_.size() || tensor.sizes() != at::IntArrayRef(saved_[index].shape) ||
               tensor.scalar_type() != saved_[index].dtype)) {
    differs("the recompute saved a different tensor for backward than the forward did: number " +
            std::to_string(index + 1));
  }
  slots_.push_back(tensor);
}

void Frame::recompute() {
  check_inputs("since");
  if (module_->is_training() != training_) differs("train() or eval() was called between forward and backward");
  {
    const HeldValue inside(inside_frame, true);
    const BlockCalls::RecomputeScope recompute;
    const at::AutoGradMode with_grad(true);
    const ForwardReplay::Replaying replaying(replay_);
    CaptureAll store(*this);
    const SavedTensorScope scope(&store);
    try {
      body_->run();
    } catch (...) {
      slots_.clear();
      throw;
    }
    body_->drop_outputs();
  }
  if (ran_ && slots_.size() != saved_.size()) {
    const auto count = slots_.size();
    slots_.clear();
    differs("the recompute saved " + std::to_string(count) + " tensors for backward, the forward saved " +
            std::to_string(saved_.size()));
  }
}

class Checkpointing final : public BlockRunner {
 public:
  std::function<void()> run(const BlockCall& call, const std::shared_ptr<BlockBody>& body) override {
    if (inside_frame || !at::GradMode::is_enabled()) {
      body->run();
      return {};
    }
    const auto frame = std::make_shared<Frame>(call.block->block_name(), call.block->block_module(), body);
    frame->run();
    return [frame] { frame->recompute_once(); };
  }
};

void outermost_blocks(const torch::nn::Module& module, std::vector<BlockCalls*>& blocks) {
  for (const auto& child : module.named_children()) {
    if (auto* block = dynamic_cast<BlockCalls*>(child.value().get())) {
      if (std::find(blocks.begin(), blocks.end(), block) == blocks.end()) blocks.push_back(block);
    } else {
      outermost_blocks(*child.value(), blocks);
    }
  }
}

std::vector<BlockCalls*> blocks_of(const std::shared_ptr<torch::nn::Module>& model, const std::string& policy) {
  std::vector<BlockCalls*> blocks;
  if (policy == "none") return blocks;
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::usage, "activation_checkpointing=" + policy, why,
                 "known: none, block, every:N, type:NAME, name:PATTERN, numel:COUNT");
  };
  constexpr std::string_view kEvery = "every:";
  std::size_t stride = 1;
  const bool every = policy.starts_with(kEvery);
  if (every) {
    const auto text = std::string_view(policy).substr(kEvery.size());
    stride = number_of<std::size_t>(text).value_or(0);
    if (stride < 1) throw refuse("'" + std::string(text) + "' is not a positive whole number");
  }
  if (every || policy == "block") {
    outermost_blocks(*model, blocks);
    if (blocks.empty()) throw refuse("the model has no blocks below it: declare its layers with TROUPE_BLOCK");
    std::vector<BlockCalls*> chosen;
    for (std::size_t i = 0; i < blocks.size(); i += stride) chosen.push_back(blocks[i]);
    return chosen;
  }
  WrapPolicy wrap;
  try {
    wrap = parse_wrap_policy(policy);
  } catch (const Error& error) {
    throw refuse(error.report().cause);
  }
  for (const auto& unit : wrap_units(model, wrap)) {
    if (!unit.name.empty()) blocks.push_back(unit.block);
  }
  return blocks;
}

bool draws_from_libtorch(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  const auto drops = [](const auto* dropout) { return dropout != nullptr && dropout->options.p() > 0; };
  if (drops(dynamic_cast<const nn::DropoutImpl*>(&module)) || drops(dynamic_cast<const nn::Dropout2dImpl*>(&module)) ||
      drops(dynamic_cast<const nn::Dropout3dImpl*>(&module)) ||
      drops(dynamic_cast<const nn::AlphaDropoutImpl*>(&module)) ||
      drops(dynamic_cast<const nn::FeatureAlphaDropoutImpl*>(&module))) {
    return true;
  }
  if (const auto* attention = dynamic_cast<const nn::MultiheadAttentionImpl*>(&module))
    return attention->options.dropout() > 0;
  return dynamic_cast<const nn::RReLUImpl*>(&module) != nullptr;
}

std::optional<std::string> random_below(torch::nn::Module& module, const std::string& path, bool inside) {
  if (const auto* block = dynamic_cast<BlockCalls*>(&module))
    inside = inside || dynamic_cast<Checkpointing*>(block->runner().get()) != nullptr;
  if (inside && draws_from_libtorch(module)) return path;
  for (const auto& child : module.named_children()) {
    if (auto found = random_below(*child.value(), path.empty() ? child.key() : path + "." + child.key(), inside))
      return found;
  }
  return std::nullopt;
}

}  // namespace

std::size_t checkpoint_activations(const std::shared_ptr<torch::nn::Module>& model, const std::string& policy) {
  const auto blocks = blocks_of(model, policy);
  model->apply([](torch::nn::Module& module) {
    auto* block = dynamic_cast<BlockCalls*>(&module);
    if (block != nullptr && dynamic_cast<Checkpointing*>(block->runner().get()) != nullptr) block->set_runner(nullptr);
  });
  if (!blocks.empty()) name_blocks(*model);
  const auto runner = std::make_shared<Checkpointing>();
  for (auto* block : blocks) block->set_runner(runner);
  return blocks.size();
}

std::optional<std::string> stock_random_module(torch::nn::Module& model) { return random_below(model, "", false); }

}  // namespace troupe
