#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensor_io/layout/tensors_in.hpp"

namespace troupe {

class BlockCalls;

/// One call of a block, from its forward to its backward.
struct BlockCall {
  BlockCalls* block = nullptr;
  std::uint64_t id = 0;    ///< of this process, growing: tells calls of one block apart, and nested ones
  bool recompute = false;  ///< forward runs again for the sake of backward, which is under way: the backward hooks are
                           ///< the first call's
  bool differentiable =
      false;  ///< known in after_forward: an output requires grad and this call's backward hooks may follow
};

/// What hangs on a block's call: FSDP's gather and reshard, a pipeline's stage, a trace span.
///
/// Within a call the hooks of a block run in the order of `add_hook` before, in the reverse order after. A hook may
/// throw; the call or the backward ends with that. Where forward throws there is no after_forward.
///
/// - before_forward, after_forward: around each call, in train and eval mode, under NoGradGuard too. In a recompute
/// (activation
///   checkpointing) they come again for the blocks inside, with `recompute` set; no hook of the backward belongs to
///   that call.
/// - before_backward: once per call and backward, before the first gradient of any output enters the block, and after
/// that of the enclosing
///   block. A block whose outputs get no gradient has none.
/// - after_backward: once per before_backward, when the gradients of all inputs that need one are computed; all nodes
/// of the block that run
///   in this backward ran before, so its parameters' gradients are accumulated. Where no input needs a gradient (an
///   embedding, the first block) it comes when the enclosing block ends, or at the end of backward: inner blocks before
///   outer ones.
///
/// Outputs are the tensors that TensorsIn finds in what forward returns. A tensor that leaves otherwise (by a member)
/// is not seen; if it belongs to a nested block's output, that one's hooks see it. A backward that fails midway drops
/// its after_backwards.
///
/// Threads: forward hooks on the caller's, backward hooks on autograd's, which on the CPU is the thread that called
/// backward. Hooks of one model must not be spread over several devices' threads.
class BlockHook {
 public:
  virtual ~BlockHook() = default;
  virtual void before_forward(const BlockCall&) {}
  /// Replaces a tensor argument, after before_forward: a cast, for instance. Runs inside autograd: what it does is
  /// differentiated.
  virtual at::Tensor map_input(const BlockCall&, const at::Tensor& input) { return input; }
  /// Replaces an output, before after_forward.
  virtual at::Tensor map_output(const BlockCall&, const at::Tensor& output) { return output; }
  virtual void after_forward(const BlockCall&) {}
  virtual void before_backward(const BlockCall&) {}
  virtual void after_backward(const BlockCall&) {}
};

/// A call's arguments and results with their types erased. `run` may be called again after keep().
class BlockBody {
 public:
  virtual ~BlockBody() = default;
  virtual void visit_inputs(TensorVisitor visit) = 0;   ///< in the order of the arguments; may be replaced
  virtual void run() = 0;                               ///< the module's own forward, without hooks
  virtual void visit_outputs(TensorVisitor visit) = 0;  ///< of the last run; may be replaced
  virtual void drop_outputs() = 0;
  /// In the place of `run`: `output` is what forward returns. Throws Error(usage) for a forward that does not return
  /// one tensor.
  virtual void supply(const at::Tensor& output) = 0;
  /// Copies what `run` needs, so that it may be called after the caller's arguments are gone. Before the first run.
  /// Throws Error(usage) where an argument can't be copied: a reference that forward may write to, a type without copy.
  virtual void keep() = 0;
};

/// Runs a call's body instead of the block itself: activation checkpointing. At most one per block.
class BlockRunner {
 public:
  virtual ~BlockRunner() = default;
  /// To call body->run() with the inputs as they are. What it returns, if anything, is called when a gradient enters
  /// the block, right after the before_backward hooks, again in each backward.
  virtual std::function<void()> run(const BlockCall& call, const std::shared_ptr<BlockBody>& body) = 0;
};

/// The part of a block that does not depend on its module: who hangs on its calls.
class BlockCalls {
 public:
  BlockCalls();
  virtual ~BlockCalls();
  /// A copied module is a block of its own: without hooks.
  BlockCalls(const BlockCalls&);
  BlockCalls& operator=(const BlockCalls&) { return *this; }

  /// The innermost one is added last. Not during a call of this block.
  void add_hook(std::shared_ptr<BlockHook> hook);
  void remove_hook(const BlockHook* hook);
  /// nullptr: the block runs itself.
  void set_runner(std::shared_ptr<BlockRunner> runner);
  const std::shared_ptr<BlockRunner>& runner() const noexcept;

  virtual torch::nn::Module& block_module() = 0;
  /// The module's type without namespace and `Impl`: what TROUPE_BLOCK was given.
  virtual std::string block_type() const = 0;
  /// Its path in the model, once name_blocks was called; its type before.
  std::string block_name() const;
  void set_block_name(std::string name) { name_ = std::move(name); }

  /// While it lives, calls on this thread are recomputed ones: forward hooks only, and no autograd nodes of the hooks.
  class RecomputeScope {
   public:
    RecomputeScope();
    ~RecomputeScope();
    RecomputeScope(const RecomputeScope&) = delete;
    RecomputeScope& operator=(const RecomputeScope&) = delete;
  };
  /// A RecomputeScope lives on this thread.
  static bool is_recomputing() noexcept;

  struct Shared;
  struct Record;
  class BackwardPass;

 protected:
  /// Nothing hangs on the block: forward may be called as it is.
  bool quiet() const noexcept { return quiet_; }
  void run_call(const std::shared_ptr<BlockBody>& body);

 private:
  void update_quiet();

  std::shared_ptr<Shared> shared_;  // calls that are still in a graph refer to it, and see when the block is gone
  bool quiet_ = true;
  std::string name_;
};

/// Gives each block of the model its path as name: `layers.0.attention`. A block that is registered twice has its first
/// path.
void name_blocks(torch::nn::Module& model);

/// `name` without namespaces and the ending `Impl`: as a user writes it.
std::string plain_type_name(std::string_view name);

}  // namespace troupe
