#include "strategies/mesh/stage_runner.hpp"

#include <utility>

#include "tensor_io/base/error.hpp"
#include "tensor_io/device/device_stream.hpp"

namespace troupe {
namespace {

void find_outermost(torch::nn::Module& module, const std::string& path, std::vector<StageRunner::Found>& found) {
  if (auto* block = dynamic_cast<BlockCalls*>(&module)) {
    for (const auto& other : found) {
      if (other.block == block)
        throw Error(ErrorCode::usage, "pipeline", "block " + path + " is in the model twice, also as " + other.name,
                    "register it once");
    }
    found.push_back({block, path});
    return;
  }
  for (const auto& child : module.named_children())
    find_outermost(*child.value(), path.empty() ? child.key() : path + "." + child.key(), found);
}

}  // namespace

/// Of one block. Runs what was there before it: activation checkpointing.
class StageRunner::Runner final : public BlockRunner {
 public:
  Runner(StageRunner& stages, int index, std::shared_ptr<BlockRunner> inner)
      : stages_(&stages), index_(index), inner_(std::move(inner)) {}

  std::function<void()> run(const BlockCall& call, const std::shared_ptr<BlockBody>& body) override {
    auto& s = *stages_;
    if (s.mode_ == Mode::whole) return run_block(call, body);
    s.expect(index_);
    if (s.mode_ == Mode::measure) {
      const auto begin = std::chrono::steady_clock::now();
      auto enter = run_block(call, body);
      s.wait_for_device();
      s.times_[static_cast<std::size_t>(index_)] += std::chrono::steady_clock::now() - begin;
      return enter;
    }
    if (index_ >= s.end_) throw StageEnded{};
    if (index_ < s.begin_) {
      body->supply(index_ + 1 == s.begin_ ? s.input_ : s.input_.detach());
      return {};
    }
    auto enter = run_block(call, body);
    if (index_ + 1 == s.end_) {
      body->visit_outputs([&](at::Tensor& output) { s.output_ = output; });
      if (!s.output_.defined()) {
        throw Error(ErrorCode::usage, "pipeline",
                    "block " + s.blocks_[static_cast<std::size_t>(index_)].name + " returns no tensor",
                    "return one tensor from each block between two stages");
      }
    }
    return enter;
  }
  const std::shared_ptr<BlockRunner>& inner() const noexcept { return inner_; }

 private:
  std::function<void()> run_block(const BlockCall& call, const std::shared_ptr<BlockBody>& body) {
    if (inner_) return inner_->run(call, body);
    body->run();
    return {};
  }
  StageRunner* stages_;
  int index_;
  std::shared_ptr<BlockRunner> inner_;
};

StageRunner::StageRunner(torch::nn::Module& model, c10::Device device) : device_(device) {
  for (const auto& child : model.named_children()) find_outermost(*child.value(), child.key(), blocks_);
  if (blocks_.empty()) {
    throw Error(ErrorCode::usage, "pipeline", "the model has no blocks to cut between",
                "make its layers blocks (TROUPE_BLOCK)");
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    blocks_[i].block->set_runner(std::make_shared<Runner>(*this, static_cast<int>(i), blocks_[i].block->runner()));
}

StageRunner::~StageRunner() {
  for (const auto& [block, name] : blocks_) block->set_runner(dynamic_cast<Runner&>(*block->runner()).inner());
}

void StageRunner::begin(int begin, int end, at::Tensor input) {
  mode_ = Mode::part;
  begin_ = begin;
  end_ = end;
  next_ = 0;
  input_ = std::move(input);
  output_ = at::Tensor();
}

void StageRunner::begin_measuring() {
  mode_ = Mode::measure;
  next_ = 0;
  times_.assign(blocks_.size(), std::chrono::nanoseconds(0));
}

void StageRunner::wait_for_device() const {
  if (device_.is_cpu()) return;
  DeviceEvent over(device_);
  over.record(DeviceStream::current(device_));
  host_wait(over, [] {});
}

void StageRunner::end() {
  const auto mode = std::exchange(mode_, Mode::whole);
  input_ = output_ = at::Tensor();
  if (mode != Mode::whole && next_ < static_cast<int>(mode == Mode::part ? end_ : static_cast<int>(blocks_.size()))) {
    throw Error(ErrorCode::usage, "pipeline",
                "forward did not call block " + blocks_[static_cast<std::size_t>(next_)].name,
                "call each block once, in the order of registration");
  }
}

void StageRunner::expect(int block) {
  if (block != next_) {
    const auto name = [&](int b) {
      return b < static_cast<int>(blocks_.size()) ? "block " + blocks_[static_cast<std::size_t>(b)].name : "the end";
    };
    throw Error(ErrorCode::usage, "pipeline",
                "forward calls block " + blocks_[static_cast<std::size_t>(block)].name + ", but " + name(next_) +
                    " was expected",
                "call each block once, in the order of registration");
  }
  ++next_;
}

}  // namespace troupe
