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
  std::uint64_t id = 0;    ///< distinct and growing in this process: distinguishes calls of one block, also nested ones
  bool recompute = false;  ///< backward is under way and runs forward again; the backward hooks are those of the first
                           ///< call
  bool differentiable =
      false;  ///< known in after_forward: an output requires grad and this call's backward hooks may follow
};

/// The hooks on a block's calls: FSDP's gather and reshard, a pipeline's stage, a trace span.
///
/// The hooks of a block run in the order of `add_hook` before a call, and in reverse order after it. A hook may throw;
/// the call or the backward ends with that error. If forward throws, after_forward does not come.
///
/// - before_forward, after_forward: around each call, in train and eval mode, under NoGradGuard too.
///   In a recompute (activation checkpointing) they come again for the blocks inside, with `recompute` set.
///   No backward hook belongs to that call.
/// - before_backward: once per call and backward, before the first gradient of any output enters the block.
///   It comes after the before_backward of the enclosing block.
///   A block whose outputs get no gradient has none.
/// - after_backward: once per before_backward, when the gradients of all inputs that need one are computed.
///   All nodes of the block that run in this backward have run then.
///   So the gradients of its parameters are accumulated.
///   If no input needs a gradient (an embedding, the first block), it comes when the enclosing block ends,
///   or at the end of backward.
///   Inner blocks come before outer ones.
///
/// Outputs are the tensors that TensorsIn finds in forward's result. A tensor that leaves in another way (through a
/// member) is not seen. If it is an output of a nested block, that block's hooks see it. A backward that fails midway
/// drops its after_backwards.
///
/// Threads: forward hooks run on the caller's, backward hooks on autograd's. On the CPU that is the thread that called
/// backward. Hooks of one model must not be spread over several devices' threads.
class BlockHook {
 public:
  virtual ~BlockHook() = default;
  virtual void before_forward(const BlockCall&) {}
  /// Replaces a tensor argument, after before_forward: a cast, for instance. Runs inside autograd, which differentiates
  /// it.
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
  /// Instead of `run`: `output` becomes the result of forward. Throws Error(usage) for a forward that does not return
  /// one tensor.
  virtual void supply(const at::Tensor& output) = 0;
  /// Copies what `run` needs, so that it may be called after the caller's arguments are gone. Before the first run.
  /// Throws Error(usage) if an argument can't be copied: a reference that forward may write to, a type without a copy.
  virtual void keep() = 0;
};

/// Runs a call's body instead of the block itself: activation checkpointing. At most one per block.
class BlockRunner {
 public:
  virtual ~BlockRunner() = default;
  /// Must call body->run() with the inputs as they are. The function that it returns may be empty. Each backward calls
  /// it when a gradient enters the block, right after the before_backward hooks.
  virtual std::function<void()> run(const BlockCall& call, const std::shared_ptr<BlockBody>& body) = 0;
};

/// The part of a block that does not depend on its module: the hooks on its calls.
class BlockCalls {
 public:
  BlockCalls();
  virtual ~BlockCalls();
  /// A copied module is a new block, without hooks.
  BlockCalls(const BlockCalls&);
  BlockCalls& operator=(const BlockCalls&) { return *this; }

  /// The innermost one is added last. Not during a call of this block.
  void add_hook(std::shared_ptr<BlockHook> hook);
  void remove_hook(const BlockHook* hook);
  /// nullptr: the block runs itself.
  void set_runner(std::shared_ptr<BlockRunner> runner);
  const std::shared_ptr<BlockRunner>& runner() const noexcept;

  virtual torch::nn::Module& block_module() = 0;
  /// The module's type without namespace and `Impl`: the argument of TROUPE_BLOCK.
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
  /// The block has no hook and no runner: forward may be called as it is.
  bool quiet() const noexcept { return quiet_; }
  void run_call(const std::shared_ptr<BlockBody>& body);

 private:
  void update_quiet();

  std::shared_ptr<Shared> shared_;  // calls that are still in a graph refer to it, and see when the block is gone
  bool quiet_ = true;
  std::string name_;
};

/// Gives each block of the model its path as name: `layers.0.attention`. A block that is registered twice gets its
/// first path.
void name_blocks(torch::nn::Module& model);

/// `name` without namespaces and the ending `Impl`: as a user writes it.
std::string plain_type_name(std::string_view name);

}  // namespace troupe
