#include "strategies/sharded/unit_gradients.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "strategies/replicated/gradient_buckets.hpp"
#include "tensor_io/device/device_kernels.hpp"
#include "tensor_io/kernels/pack.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kShardAlignment = 64;  // elements; of loads of 16 bytes, and of what one block of a kernel takes

bool is_finite(const at::Tensor& tensor) { return !tensor.is_cpu() || all_finite(tensor); }

// Into the whole gradient, which may be of another dtype. Says whether every value is finite; on a device that is not
// asked.
bool write_checked(const at::Tensor& view, const at::Tensor& gradient) {
  if (view.is_cpu() && view.scalar_type() == gradient.scalar_type()) return copy_and_check(view, gradient);
  view.copy_(gradient);
  return is_finite(view);
}

bool add_checked(const at::Tensor& view, const at::Tensor& gradient) {
  if (view.is_cpu() && view.scalar_type() == gradient.scalar_type()) return add_and_check(view, gradient);
  view.add_(gradient);
  return is_finite(view);
}

}  // namespace

// On the reducer's thread: the average over all ranks, this rank's shard of it, into the flat's gradient.
class UnitGradients::Reduction final : public CommHook {
 public:
  struct Target {
    at::Tensor gradient;           // (shard_numel,) in the master's dtype, where the master is
    at::Tensor checks;             // on a device: what scale_and_check says of it
    at::Tensor scratch;            // (shard_numel,) in the reduce dtype, where the result can't go there at once
    GradientRing* ring = nullptr;  // where the whole gradient goes back to
  };
  Reduction(std::shared_ptr<Communicator> group, std::shared_ptr<Communicator> replicas)
      : group_(std::move(group)), replicas_(std::move(replicas)) {}

  void reduce(BucketView& bucket, Communicator& communicator) override {
    torch::NoGradGuard no_grad;
    auto& target = targets[static_cast<std::size_t>(bucket.index)];
    auto& group = group_ ? *group_ : communicator;
    auto result = target.gradient;
    const bool away = result.device() != bucket.flat.device();
    const bool direct = !adds && !away && result.scalar_type() == bucket.flat.scalar_type();
    if (!direct) {
      result = target.scratch.defined() ? target.scratch : at::empty(result.sizes(), bucket.flat.options());
      if (!away) target.scratch = result;
    }
    // As comm hook `none`: sums, which the look at the result divides.
    const bool sums = direct && target.checks.defined() && bucket.flat.scalar_type() != at::kHalf;
    const auto op = sums ? ReduceOp::sum : ReduceOp::avg;
    group.reduce_scatter(result, target.ring ? target.ring->in_turn(bucket.flat) : bucket.flat, op, bucket.label);
    if (replicas_) replicas_->all_reduce(result, op, bucket.label);
    const double scale = sums ? 1.0 / (group.world_size() * (replicas_ ? replicas_->world_size() : 1)) : 1;
    if (away) {
      result = bring_home(result, target.gradient);
    } else if (!direct) {
      adds ? target.gradient.add_(result) : target.gradient.copy_(result);
      result = target.gradient;
    }
    if (target.checks.defined()) scale_and_check(result, scale, target.checks);
    if (target.ring == nullptr) return;
    target.ring->give_back(bucket.flat);
    bucket.flat = at::Tensor();
  }
  void give_up() noexcept override {
    for (const auto& target : targets) {
      if (target.ring != nullptr) target.ring->break_up();
    }
  }

  std::vector<Target> targets;     // by position
  std::atomic<bool> adds = false;  // an earlier micro-batch's result is there

 private:
  /// Into the host's memory, added up on the device: the host waits for nothing. Returns what will be there.
  at::Tensor bring_home(const at::Tensor& reduced, const at::Tensor& gradient) const {
    auto sum = reduced.to(gradient.scalar_type());
    if (adds) sum = gradient.to(reduced.device(), /*non_blocking=*/true).add_(sum);
    gradient.copy_(sum, /*non_blocking=*/true);
    return sum;
  }

  std::shared_ptr<Communicator> group_, replicas_;
};

UnitGradients::UnitGradients(ShardedParameters& parameters, std::shared_ptr<Communicator> group,
                             std::shared_ptr<Communicator> replicas, Options options, FlatFull full)
    : parameters_(parameters),
      options_(options),
      full_(std::move(full)),
      entries_(parameters.parameters().size()),
      flats_(parameters.flats().size()),
      reduction_(std::make_shared<Reduction>(group, std::move(replicas))),
      alive_(std::make_shared<UnitGradients*>(this)) {
  std::map<at::ScalarType, std::int64_t> largest;
  for (std::size_t f = 0; f < flats_.size(); ++f) {
    const auto& plan = *parameters_.flats()[f].plan;
    if (!plan.trainable) continue;
    order_.insert(order_.begin(), static_cast<std::int32_t>(f));  // backward goes backwards
    for (const auto& slot : plan.slots) {
      entries_[static_cast<std::size_t>(slot.parameter)] = {
          static_cast<std::int32_t>(f), slot.offset, slot.numel, false, false, false, false, {}};
      torch::autograd::impl::set_post_acc_grad_hooks(
          parameters_.parameters()[static_cast<std::size_t>(slot.parameter)].tensor,
          std::make_unique<GradientHook<UnitGradients>>(alive_, static_cast<std::size_t>(slot.parameter)));
    }
    auto& numel = largest[reduce_dtype(plan)];
    numel = std::max(numel, plan.numel);
  }
  const auto shards = memory_of_shards(*group);
  for (const auto index : order_) {
    const auto f = static_cast<std::size_t>(index);
    const auto& plan = *parameters_.flats()[f].plan;
    at::Tensor gradient;
    if (options_.keep_whole) {
      auto& kept = flats_[f].kept = flats_[f].buffer = group->allocate(plan.numel, reduce_dtype(plan));
      if (is_direct(plan)) gradient = kept.narrow(0, group->rank() * plan.shard_numel, plan.shard_numel);
    } else if (const auto found = shards.find(index); found != shards.end()) {
      gradient = found->second;
    }
    parameters_.set_gradient(f, gradient.defined() ? gradient : parameters_.shard_memory(plan.shard_numel, plan.dtype));
  }
  if (!options_.keep_whole) {
    for (const auto& [dtype, numel] : largest) rings_[dtype] = std::make_unique<GradientRing>(*group, numel, dtype);
  }
  if (!parameters_.device().is_cpu() && !order_.empty()) {
    checks_ = at::zeros({static_cast<std::int64_t>(flats_.size()), 2},
                        at::TensorOptions().dtype(at::kDouble).device(parameters_.device()));
  }
  set_order(order_);
}

// Of whole gradients that go round on a device, by flat: NCCL makes no copies where it knows both sides of a reduction.
// One piece of the group's memory for each dtype, since NCCL gives it in pieces of 2 MiB.
std::map<std::int32_t, at::Tensor> UnitGradients::memory_of_shards(Communicator& group) const {
  std::map<std::int32_t, at::Tensor> shards;
  if (options_.keep_whole || group.device().is_cpu()) return shards;
  std::map<at::ScalarType, std::vector<std::int32_t>> by_dtype;
  for (const auto f : order_) {
    const auto& plan = *parameters_.flats()[static_cast<std::size_t>(f)].plan;
    if (is_direct(plan)) by_dtype[plan.dtype].push_back(f);
  }
  for (const auto& [dtype, flats] : by_dtype) {
    std::vector<std::int64_t> starts{0};
    for (const auto f : flats) {
      const auto end = starts.back() + parameters_.flats()[static_cast<std::size_t>(f)].plan->shard_numel;
      starts.push_back((end + kShardAlignment - 1) / kShardAlignment * kShardAlignment);
    }
    const auto memory = group.allocate(starts.back(), dtype);
    for (std::size_t i = 0; i < flats.size(); ++i)
      shards[flats[i]] =
          memory.narrow(0, starts[i], parameters_.flats()[static_cast<std::size_t>(flats[i])].plan->shard_numel);
  }
  return shards;
}

UnitGradients::~UnitGradients() {
  alive_.reset();
  for (std::size_t p = 0; p < entries_.size(); ++p) {
    if (entries_[p].flat >= 0)
      torch::autograd::impl::set_post_acc_grad_hooks(parameters_.parameters()[p].tensor, nullptr);
  }
}

std::shared_ptr<CommHook> UnitGradients::reduction() const noexcept { return reduction_; }

at::ScalarType UnitGradients::reduce_dtype(const FlatParameter& flat) const {
  return options_.reduce_dtype == at::ScalarType::Undefined ? flat.dtype : options_.reduce_dtype;
}

// Whether its shard is where the reduction writes.
bool UnitGradients::is_direct(const FlatParameter& flat) const {
  return !options_.every_micro_batch && !parameters_.offloads() && reduce_dtype(flat) == flat.dtype;
}

void UnitGradients::set_order(Flats order) {
  order_ = std::move(order);
  views_ = std::make_shared<std::vector<BucketView>>(order_.size());
  std::vector<Reduction::Target> targets(order_.size());
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const auto f = static_cast<std::size_t>(order_[i]);
    const auto& flat = parameters_.flats()[f];
    flats_[f].position = static_cast<std::int32_t>(i);
    auto& view = (*views_)[i];
    view.index = static_cast<std::int32_t>(i);
    view.is_last = i + 1 == order_.size();
    view.label = "flat " + std::to_string(f);
    view.flat = flats_[f].kept;
    targets[i].gradient = flat.gradient;
    if (checks_.defined()) {
      targets[i].checks = checks_.select(0, order_[i]);  // added up in the flats' order: a resumed run has another one
      view.ready = std::make_shared<DeviceEvent>(parameters_.device());
      view.reduced = std::make_shared<DeviceEvent>(parameters_.device());
    }
    if (!options_.keep_whole) targets[i].ring = &ring(reduce_dtype(*flat.plan));
  }
  reduction_->targets = std::move(targets);
}

void UnitGradients::begin_step() {
  for (std::size_t p = 0; p < entries_.size(); ++p) {
    entries_[p].used = entries_[p].in_buffer = entries_[p].in_earlier = false;
    entries_[p].source = at::Tensor();
    parameters_.parameters()[p].tensor.mutable_grad() = at::Tensor();
  }
  for (const auto& slice : parameters_.slices()) slice.leaf.mutable_grad() = at::Tensor();
  for (auto& flat : flats_) flat.buffer = flat.kept;
  for (auto& [dtype, ring] : rings_) ring->reset();
  turns_.clear();
  rounds_ = 0;
  not_finite_ = -1;
}

bool UnitGradients::begin_backward(bool last, double weight) {
  weight_ = weight;
  reduces_ = last || options_.every_micro_batch;
  if (!reduces_) return false;
  reduction_->adds = rounds_++ > 0;
  arrival_.clear();
  sent_ = sent_in_order_ = 0;
  was_sent_.assign(order_.size(), false);
  for (auto& entry : entries_) entry.ready = false;
  for (const auto index : order_) {
    auto& flat = flats_[static_cast<std::size_t>(index)];
    const auto& plan = *parameters_.flats()[static_cast<std::size_t>(index)].plan;
    flat.pending = static_cast<std::int32_t>(plan.slots.size());
    flat.turn = turns_[reduce_dtype(plan)]++;
  }
  return true;
}

at::Tensor UnitGradients::view_of(const at::Tensor& flat, std::size_t p) const {
  const auto& parameter = parameters_.parameters()[p];
  return flat.narrow(0, entries_[p].offset, entries_[p].numel).as_strided(parameter.sizes, parameter.strides);
}

void UnitGradients::take_buffer(std::size_t f) {
  auto& state = flats_[f];
  if (state.buffer.defined()) return;
  const auto& plan = *parameters_.flats()[f].plan;
  // What was sent comes back if the reducer holds nothing back, and if the others, who may send the same flat only at
  // the end of their backward, come there without this rank.
  const bool may_wait = !options_.never_waits && sent_ == sent_in_order_;
  state.buffer = ring(reduce_dtype(plan)).take(state.turn, plan.numel, may_wait);
  // What lies between parameters is added up too by what looks at a device's shards.
  std::int64_t numel = 0;
  for (const auto& slot : plan.slots) numel += slot.numel;
  if (checks_.defined() && numel < plan.numel) state.buffer.zero_();
}

void UnitGradients::arrived(std::size_t p) {
  auto& gradient = parameters_.parameters()[p].tensor.mutable_grad();
  if (!gradient.defined()) return;
  torch::NoGradGuard no_grad;
  if (gradient.is_sparse()) {
    throw Error(ErrorCode::usage, "gradient of " + parameters_.parameters()[p].name,
                "it is sparse, flat parameters hold dense gradients", "construct the embedding with sparse(false)");
  }
  auto& entry = entries_[p];
  const auto f = static_cast<std::size_t>(entry.flat);
  auto& state = flats_[f];
  bool finite = true;
  entry.used = entry.used || weight_ != 0;
  if (!reduces_ && !options_.keep_whole) {  // adds up until the micro-batch that is reduced
    if (!state.earlier.defined()) {
      const auto& plan = *parameters_.flats()[f].plan;
      state.earlier = at::zeros({plan.numel}, gradient.options().dtype(reduce_dtype(plan)));
    }
    const auto view = view_of(state.earlier, p);
    if (weight_ == 0) {
      if (!entry.in_earlier) view.zero_();
    } else {
      finite = entry.in_earlier ? add_checked(view, gradient) : write_checked(view, gradient);
    }
    entry.in_earlier = true;
  } else {
    take_buffer(f);
    const auto view = view_of(state.buffer, p);
    if (entry.in_earlier) view.copy_(view_of(state.earlier, p));
    const bool adds = entry.in_earlier || (options_.keep_whole && entry.in_buffer);
    if (weight_ == 0) {
      if (!adds) view.zero_();
      if (adds) finite = is_finite(view);
    } else if (reduces_ && !adds && is_packable(p, gradient)) {
      entry.source = gradient;
    } else {
      finite = adds ? add_checked(view, gradient) : write_checked(view, gradient);
    }
    entry.in_buffer = true;
  }
  gradient = at::Tensor();
  if (!finite && not_finite_ < 0) not_finite_ = static_cast<std::int32_t>(p);
  if (reduces_ && !entry.ready) count(p);
}

void UnitGradients::count(std::size_t p) {
  auto& entry = entries_[p];
  entry.ready = true;
  if (--flats_[static_cast<std::size_t>(entry.flat)].pending == 0) send(static_cast<std::size_t>(entry.flat));
}

bool UnitGradients::is_packable(std::size_t p, const at::Tensor& gradient) const {
  const auto has = [](at::ScalarType dtype) {
    return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
  };
  const auto& flat = parameters_.flats()[static_cast<std::size_t>(entries_[p].flat)];
  return checks_.defined() && has(gradient.scalar_type()) && has(reduce_dtype(*flat.plan)) &&
         gradient.scalar_type() == flat.whole.scalar_type() && gradient.is_contiguous() &&
         gradient.strides() == at::IntArrayRef(parameters_.parameters()[p].strides);
}

void UnitGradients::pack_sources(std::size_t f) {
  std::vector<at::Tensor> sources;
  std::vector<std::int64_t> offsets;
  for (const auto& slot : parameters_.flats()[f].plan->slots) {
    auto& source = entries_[static_cast<std::size_t>(slot.parameter)].source;
    if (!source.defined()) continue;
    sources.push_back(std::exchange(source, at::Tensor()));
    offsets.push_back(slot.offset);
  }
  if (!sources.empty()) pack(flats_[f].buffer, sources, offsets);
}

void UnitGradients::send(std::size_t f) {
  auto& state = flats_[f];
  pack_sources(f);
  arrival_.push_back(static_cast<std::int32_t>(f));
  const auto position = static_cast<std::size_t>(state.position);
  was_sent_[position] = true;
  ++sent_;
  while (sent_in_order_ < static_cast<std::int32_t>(was_sent_.size()) &&
         was_sent_[static_cast<std::size_t>(sent_in_order_)])
    ++sent_in_order_;
  auto& view = (*views_)[position];
  view.flat = state.buffer;
  if (view.ready) view.ready->record(DeviceStream::current(parameters_.device()));
  if (!options_.keep_whole) ring(state.buffer.scalar_type()).hand_over(state.buffer);
  state.buffer = state.kept;
  full_(state.position);
}

void UnitGradients::end_backward() {
  if (!reduces_) return;
  torch::NoGradGuard no_grad;
  for (const auto flat : order_) {
    const auto f = static_cast<std::size_t>(flat);
    if (flats_[f].pending == 0) continue;
    take_buffer(f);
    for (const auto& slot : parameters_.flats()[f].plan->slots) {
      const auto p = static_cast<std::size_t>(slot.parameter);
      auto& entry = entries_[p];
      if (entry.ready) continue;
      const auto view = view_of(flats_[f].buffer, p);
      if (entry.in_earlier) {
        view.copy_(view_of(flats_[f].earlier, p));
      } else if (!options_.keep_whole || !entry.in_buffer) {
        view.zero_();
      }
      count(p);
    }
  }
  // The shards of this micro-batch are summed up, those of the next one are added to them.
  if (options_.every_micro_batch) {
    for (auto& entry : entries_) entry.in_buffer = false;
  }
}

void UnitGradients::receive() const {
  // The reducer's stream is in order: after the last one all are reduced.
  if (!views_->empty() && views_->back().reduced)
    DeviceStream::current(parameters_.device()).wait(*views_->back().reduced);
}

at::Tensor UnitGradients::device_checks(Communicator& group) const {
  if (!checks_.defined()) return {};
  const auto mine = checks_.sum(0);
  auto all = at::empty({2 * group.world_size()}, mine.options());
  group.all_gather(all, mine, "gradient norm");
  return all.view({-1, 2});
}

std::int32_t UnitGradients::find_not_finite() const {
  for (const auto& slice : parameters_.slices()) {
    if (slice.gradient.defined() && !slice.gradient.isfinite().all().item<bool>()) return slice.place.parameter;
  }
  return -1;
}

std::vector<bool> UnitGradients::used() const {
  std::vector<bool> used(entries_.size());
  for (std::size_t p = 0; p < entries_.size(); ++p) used[p] = entries_[p].used;
  return used;
}

void UnitGradients::set_gradients(const std::vector<bool>& used_anywhere) {
  for (const auto& slice : parameters_.slices()) {
    if (!slice.gradient.defined()) continue;
    slice.leaf.mutable_grad() =
        used_anywhere[static_cast<std::size_t>(slice.place.parameter)] ? slice.gradient : at::Tensor();
  }
}

bool UnitGradients::waited_in_vain() const {
  return std::any_of(rings_.begin(), rings_.end(), [](const auto& ring) { return ring.second->waited_in_vain(); });
}

std::int64_t UnitGradients::buffer_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& flat : flats_) {
    for (const auto& tensor : {flat.kept, flat.earlier})
      bytes += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
  }
  for (const auto& [dtype, ring] : rings_) bytes += ring->bytes();
  return bytes;
}

}  // namespace troupe
