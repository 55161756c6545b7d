#include "tensor_io/layers/dropout.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>
#include <utility>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/random_seed.hpp"
#include "tensor_io/device/accelerator.hpp"
#include "tensor_io/device/device_graph.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kNumbersPerCount = 4;  // of one Philox round

thread_local DropoutDraws* recorded_draws = nullptr;
thread_local DropoutDraws* replayed_draws = nullptr;
thread_local const at::Tensor* key_in_memory = nullptr;

std::uint64_t key_from_libtorch() {
  auto generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

void fill_mask(bool* keep, std::int64_t numel, std::uint64_t dropped_below, std::uint64_t key,
               std::uint64_t subsequence) {
  at::parallel_for(0, (numel + kNumbersPerCount - 1) / kNumbersPerCount, 4096,
                   [&](std::int64_t begin, std::int64_t end) {
                     at::Philox4_32 random(key, subsequence, static_cast<std::uint64_t>(begin));
                     const auto last = std::min(numel, end * kNumbersPerCount);
                     for (auto i = begin * kNumbersPerCount; i < last; ++i) keep[i] = random() >= dropped_below;
                   });
}

}  // namespace

at::Tensor dropout_mask(at::IntArrayRef sizes, double p, const DropoutKey& key, std::uint64_t subsequence,
                        at::Device device) {
  const auto dropped_below = static_cast<std::uint64_t>(std::llround(p * 0x1p32));
  auto* const graph = graph_under_way(device);
  auto mask = at::empty(
      sizes, at::TensorOptions().dtype(at::kBool).device(device.is_cuda() || graph != nullptr ? device : at::kCPU));
  if (mask.is_cuda()) {
    accelerator()->dropout_mask(mask, dropped_below, key, subsequence);
    return mask;
  }
  const auto fill = [mask, dropped_below, key, subsequence] {
    const auto value =
        key.there.defined() ? static_cast<std::uint64_t>(*key.there.const_data_ptr<std::int64_t>()) : key.value;
    fill_mask(mask.data_ptr<bool>(), mask.numel(), dropped_below, value, subsequence);
  };
  graph == nullptr ? fill() : graph->run_on_host(fill);
  return mask.to(device);
}

std::uint64_t dropout_key(const ForwardPosition& at) {
  return mix_seed(at.seed, {static_cast<std::uint64_t>(at.step), static_cast<std::uint64_t>(at.micro_batch),
                            static_cast<std::uint64_t>(at.shard)});
}

DropoutKeyInMemory::DropoutKeyInMemory(at::Tensor key) : HeldValue(key_in_memory, &key_), key_(std::move(key)) {}

DropoutDraws::Recording::Recording(DropoutDraws& draws) : HeldValue(recorded_draws, &draws) {}

DropoutDraws::Replaying::Replaying(DropoutDraws& draws) : HeldValue(replayed_draws, &draws) { draws.next_ = 0; }

const DropoutDraws::Draw* DropoutDraws::replayed() {
  if (replayed_draws == nullptr) return nullptr;
  auto& [draws, next] = *replayed_draws;
  if (next == draws.size()) {
    throw Error(ErrorCode::usage, "recompute", "forward calls a dropout more often than it did the first time",
                "make forward independent of everything that changes between forward and backward");
  }
  return &draws[next++];
}

void DropoutDraws::note(Draw draw) {
  if (recorded_draws != nullptr && replayed_draws == nullptr) recorded_draws->draws_.push_back(draw);
}

int place_dropout(torch::nn::Module& model, const std::shared_ptr<const ForwardPosition>& position) {
  int layers = 0;
  std::set<const torch::nn::Module*> seen;  // one that is registered twice has its first number
  for (const auto& module : model.modules()) {
    auto* dropout = dynamic_cast<nn::DropoutImpl*>(module.get());
    if (dropout != nullptr && seen.insert(dropout).second) dropout->place(position, layers++);
  }
  return layers;
}

namespace nn {

void DropoutImpl::place(std::shared_ptr<const ForwardPosition> position, std::int64_t layer) {
  position_ = std::move(position);
  layer_ = layer;
  visit_ = calls_ = 0;
}

at::Tensor DropoutImpl::mask(at::IntArrayRef sizes, at::Device device, const DropoutKey& key,
                             std::uint64_t subsequence) const {
  const auto of = [&](at::IntArrayRef all) { return dropout_mask(all, this->options.p(), key, subsequence, device); };
  if (part_.ranks == 1) return of(sizes);
  const auto dim = part_.dim < 0 ? part_.dim + static_cast<std::int64_t>(sizes.size()) : part_.dim;
  auto whole = sizes.vec();
  const auto own = whole[static_cast<std::size_t>(dim)];
  whole[static_cast<std::size_t>(dim)] *= part_.ranks;
  return of(whole).narrow(dim, part_.rank * own, own);
}

at::Tensor DropoutImpl::forward(const at::Tensor& input) {
  const double p = this->options.p();
  if (!this->is_training() || p == 0) return input;
  if (this->options.inplace()) {
    throw Error(ErrorCode::usage, "troupe::nn::Dropout", "it does not work in place",
                "leave inplace(true) out of its options");
  }
  auto factor = draw_mask(input.sizes(), input.device()).to(input.scalar_type());
  if (p < 1) factor.div_(1 - p);
  return input * factor;
}

at::Tensor DropoutImpl::draw_mask(at::IntArrayRef sizes, at::Device device) {
  std::uint64_t key = 0, subsequence = 0;
  if (!position_) key = key_from_libtorch();  // in a replay too, for whoever draws from that generator next
  if (const auto* draw = DropoutDraws::replayed()) {
    key = draw->key;
    subsequence = draw->subsequence;
  } else if (position_) {
    const auto& at = *position_;
    if (at.visit != visit_) calls_ = 0;
    visit_ = at.visit;
    key = dropout_key(at);
    subsequence = static_cast<std::uint64_t>(layer_) << 32 | calls_++;
  }
  DropoutDraws::note({key, subsequence});
  if (key_in_memory != nullptr && !position_) {
    throw Error(ErrorCode::usage, "cuda_graphs", "a troupe::nn::Dropout is not part of the model that was distributed",
                "register it in the model before rank.distribute(model)");
  }
  const auto mask_key = key_in_memory != nullptr ? DropoutKey(*key_in_memory) : DropoutKey(key);
  return mask(sizes, device, mask_key, subsequence);
}

void DropoutImpl::pretty_print(std::ostream& stream) const {
  stream << "troupe::nn::Dropout(p=" << this->options.p() << ")";
}

}  // namespace nn
}  // namespace troupe
