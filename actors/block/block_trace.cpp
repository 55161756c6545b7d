#include "actors/block/block_trace.hpp"

#include <map>
#include <utility>

namespace troupe {
namespace {

class SpanHook final : public BlockHook {
 public:
  SpanHook(std::string name, std::shared_ptr<TraceRecorder> recorder)
      : name_(std::move(name)), recorder_(std::move(recorder)) {}
  void before_forward(const BlockCall& call) override { begun_[{call.id, false}] = steady_now_ns(); }
  void after_forward(const BlockCall& call) override {
    end({call.id, false}, call.recompute ? " recompute" : " forward");
  }
  void before_backward(const BlockCall& call) override { begun_[{call.id, true}] = steady_now_ns(); }
  void after_backward(const BlockCall& call) override { end({call.id, true}, " backward"); }

 private:
  using Call = std::pair<std::uint64_t, bool>;  // id, backward

  void end(const Call& call, const char* what) {
    const auto found = begun_.find(call);
    if (found == begun_.end()) return;  // it began before the window
    TraceEvent event;
    event.kind = TraceEvent::Kind::block;
    event.set_name(name_ + what);
    event.begin_ns = found->second;
    event.end_ns = steady_now_ns();
    begun_.erase(found);
    if (recorder_->recording()) recorder_->track("blocks").add(event);
  }

  const std::string name_;
  const std::shared_ptr<TraceRecorder> recorder_;
  std::map<Call, std::int64_t> begun_;
};

}  // namespace

BlockTrace::BlockTrace(std::shared_ptr<torch::nn::Module> model, std::shared_ptr<TraceRecorder> recorder)
    : model_(std::move(model)) {
  for (const auto& module : model_->modules()) {
    auto* block = dynamic_cast<BlockCalls*>(module.get());
    if (block == nullptr) continue;
    hooks_.emplace_back(block, std::make_shared<SpanHook>(block->block_name(), recorder));
    block->add_hook(hooks_.back().second);
  }
}

BlockTrace::~BlockTrace() {
  for (const auto& [block, hook] : hooks_) block->remove_hook(hook.get());
}

}  // namespace troupe
