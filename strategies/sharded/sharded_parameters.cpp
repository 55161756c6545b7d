#include "strategies/sharded/sharded_parameters.hpp"

#include <algorithm>

#include "strategies/replicated/model_sync.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/device/accelerator.hpp"
#include "tensor_io/layers/deferred_init.hpp"

namespace troupe {
namespace {

c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

void point(const at::Tensor& whole, void* data) {
  storage_of(whole)->set_data_ptr_noswap(at::DataPtr(data, whole.device()));
}

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

std::string told_of(const std::string& unit) {
  return "a parameter of " + (unit.empty() ? std::string("the model itself") : "the unit '" + unit + "'") +
         " was used while it is sharded: use it within the unit's call, or take "
         "rank.state_dict(optimizer)";
}

}  // namespace

ShardedParameters::ShardedParameters(std::vector<Parameter> parameters, ShardPlan plan,
                                     std::shared_ptr<Communicator> group, Communicator& world, const Options& options)
    : parameters_(std::move(parameters)),
      plan_(std::move(plan)),
      group_(std::move(group)),
      offloads_(options.cpu_offload && !group_->device().is_cpu()),
      flats_(plan_.flats.size()),
      memory_(flats_.size()) {
  torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < parameters_.size(); ++p) index_[parameters_[p].tensor.unsafeGetTensorImpl()] = p;
  // One for all: what stays lies between the ones that go, and the heap would keep a unit's memory for each unit.
  std::int64_t bytes = 0;
  for (const auto& flat : plan_.flats)
    bytes = std::max(bytes, flat.numel * static_cast<std::int64_t>(c10::elementSize(flat.dtype)));
  const auto memory =
      at::empty({options.keep_values ? bytes : 0}, at::TensorOptions().dtype(at::kByte).device(device()));
  for (std::size_t f = 0; f < flats_.size(); ++f) {
    auto& flat = flats_[f];
    flat.plan = &plan_.flats[f];
    if (!options.keep_values) {
      place(f, options);
      continue;
    }
    const auto values = memory.view(flat.plan->dtype).narrow(0, 0, flat.plan->numel).zero_();
    for (const auto& slot : flat.plan->slots) {
      const auto& parameter = parameters_[static_cast<std::size_t>(slot.parameter)];
      if (is_deferred(parameter.tensor) && world.rank() != 0)
        continue;  // rank 0's are everybody's; it makes them in copy_
      values.narrow(0, slot.offset, slot.numel).as_strided(parameter.sizes, parameter.strides).copy_(parameter.tensor);
    }
    place(f, options);
    broadcast_tensors({{plan_.units[static_cast<std::size_t>(flat.plan->unit)], values}}, world, "parameters");
    flat.master.copy_(values.narrow(0, group_->rank() * flat.plan->shard_numel, flat.plan->shard_numel));
  }
  if (options.keep_values) publish();
  make_slices();
  for (const auto& parameter : parameters_) versions_.push_back(version_of(parameter.tensor));
}

ShardedParameters::~ShardedParameters() = default;

void ShardedParameters::check_unchanged(const std::string& strategy) const {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (version_of(parameters_[p].tensor) == versions_[p]) continue;
    throw Error(ErrorCode::usage, "parameters",
                "the program itself has changed " + parameters_[p].name + ", but with strategy " + strategy +
                    " each rank holds only a part of it",
                "use --strategy ddp, or change it only through the optimizer");
  }
}

void ShardedParameters::place(std::size_t f, const Options& options) {
  auto& flat = flats_[f];
  const auto& plan = *flat.plan;
  const auto dtype = options.param_dtype == at::ScalarType::Undefined || !at::isFloatingType(plan.dtype)
                         ? plan.dtype
                         : options.param_dtype;
  if (options.mapped && !offloads_) flat.whole = group_->allocate_shared(plan.numel, dtype);
  flat.residence = flat.whole.defined() ? Residence::mapped : options.otherwise[static_cast<std::size_t>(plan.unit)];
  if (flat.residence == Residence::replica) flat.whole = group_->allocate(plan.numel, dtype);
  if (flat.residence == Residence::gathered) {
    flat.whole = at::empty({plan.numel}, at::TensorOptions().dtype(dtype).device(device()));
    flat.absent =
        std::make_unique<AbsentMemory>(flat.whole.nbytes(), told_of(plan_.units[static_cast<std::size_t>(plan.unit)]));
    point(flat.whole, flat.absent->data());
  }
  const bool is_part = flat.residence != Residence::gathered && dtype == plan.dtype && !offloads_;
  flat.master = is_part ? flat.whole.narrow(0, group_->rank() * plan.shard_numel, plan.shard_numel)
                        : shard_memory(plan.shard_numel, plan.dtype);
  for (const auto& slot : plan.slots) {
    auto& parameter = parameters_[static_cast<std::size_t>(slot.parameter)];
    parameter.tensor.set_data(
        flat.whole.narrow(0, slot.offset, slot.numel).as_strided(parameter.sizes, parameter.strides, slot.offset));
  }
}

void ShardedParameters::make_slices() {
  slice_of_.assign(parameters_.size(), -1);
  for (const auto& place : slices_of(plan_, group_->rank())) {
    const auto& flat = flats_[static_cast<std::size_t>(place.flat)];
    Slice slice;
    slice.place = place;
    slice.leaf = flat.master.narrow(0, place.offset, place.numel).detach();
    slice.leaf.set_requires_grad(flat.plan->trainable);
    slice_of_[static_cast<std::size_t>(place.parameter)] = static_cast<std::int64_t>(slices_.size());
    slices_.push_back(std::move(slice));
  }
}

at::Tensor ShardedParameters::shard_memory(std::int64_t numel, at::ScalarType dtype) const {
  if (!offloads_) return at::zeros({numel}, at::TensorOptions().dtype(dtype).device(device()));
  if (!device().is_cuda()) return at::zeros({numel}, dtype);
  return accelerator()->pinned(numel * static_cast<std::int64_t>(c10::elementSize(dtype))).view(dtype);
}

void ShardedParameters::set_gradient(std::size_t f, const at::Tensor& memory) {
  flats_[f].gradient = memory;
  for (auto& slice : slices_) {
    if (static_cast<std::size_t>(slice.place.flat) == f)
      slice.gradient = memory.narrow(0, slice.place.offset, slice.place.numel);
  }
}

at::Tensor ShardedParameters::slice_of(const at::Tensor& parameter) const {
  const auto found = index_.find(parameter.unsafeGetTensorImpl());
  if (found == index_.end()) return {};
  const auto slice = slice_of_[found->second];
  if (slice >= 0) return slices_[static_cast<std::size_t>(slice)].leaf;
  return shard_memory(0, parameters_[found->second].dtype);
}

void ShardedParameters::publish() {
  torch::NoGradGuard no_grad;
  bool meets = false;
  for (auto& flat : flats_) {
    if (flat.residence == Residence::gathered) continue;
    const auto own = flat.whole.narrow(0, group_->rank() * flat.plan->shard_numel, flat.plan->shard_numel);
    if (own.data_ptr() != flat.master.data_ptr()) own.copy_(flat.master, /*non_blocking=*/offloads_);
    if (flat.residence == Residence::replica) group_->all_gather(flat.whole, own, "parameters");
    meets = meets || flat.residence == Residence::mapped;
  }
  if (meets) group_->barrier("parameters");  // nobody reads before all owners have written
}

void ShardedParameters::put(std::size_t f, at::Tensor memory) {
  auto& flat = flats_[f];
  point(flat.whole, memory.data_ptr());
  memory_[f] = std::move(memory);
}

at::Tensor ShardedParameters::take_away(std::size_t f) {
  point(flats_[f].whole, flats_[f].absent->data());
  return std::move(memory_[f]);
}

bool ShardedParameters::is_here(std::size_t f) const {
  return flats_[f].residence != Residence::gathered || memory_[f].defined();
}

}  // namespace troupe
