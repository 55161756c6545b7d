#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/layout/named_state.hpp"
#include "tensor_io/layout/shard_plan.hpp"
#include "tensor_io/memory/released_memory.hpp"

namespace troupe {

/// The form in which a whole flat parameter is there, for forward and backward.
enum class Residence {
  mapped,    ///< its shards lie end to end in memory that all ranks of the group map: a gather moves no byte
  replica,   ///< each rank keeps a copy, which the owners' new values reach after the update
  gathered,  ///< only around the calls of its unit; its storage is empty otherwise
};

/// A model's parameters as views of flat parameters, of which this rank owns one shard each.
///
/// The problem: an optimizer must see only this rank's shards, but autograd and the module must see whole tensors. And
/// these must come and go unnoticed by the graph, whose nodes have saved views of them. The solution: parameters become
/// views of one storage per flat parameter (set_data). If it is `gathered`, the storage's data pointer is released and
/// refilled under the same StorageImpl. The slices that the optimizer updates are separate leaves, 1-D, over the master
/// shard.
///
/// All of it lies on the group's device. With `cpu_offload` only wholes do; masters and shard_memory's tensors lie in
/// the host's memory, pinned. The optimizer runs on the host (Ren et al., "ZeRO-Offload: Democratizing Billion-Scale
/// Model Training", USENIX ATC 2021). Copies between the two do not wait on the host.
///
/// Compute's thread. The model must not replace its parameters' data meanwhile.
class ShardedParameters {
 public:
  struct Options {
    bool mapped = true;                ///< if the ranks of the group have memory in common
    std::vector<Residence> otherwise;  ///< by unit: replica or gathered
    at::ScalarType param_dtype =
        at::ScalarType::Undefined;  ///< the dtype of forward and backward; Undefined: the parameters' own
    bool cpu_offload = false;       ///< masters in the host's memory; without a device they are there in any case
    bool keep_values = true;        ///< false: values follow, by the masters and publish
  };

  /// A parameter of the model.
  struct Parameter {
    std::string name;
    at::Tensor tensor;     ///< the model's leaf
    at::ScalarType dtype;  ///< of the master
    std::vector<std::int64_t> sizes, strides;
  };

  struct Flat {
    const FlatParameter* plan = nullptr;
    Residence residence = Residence::mapped;
    std::unique_ptr<AbsentMemory> absent;  ///< of a gathered one
    at::Tensor whole;     ///< (numel,) in the dtype of forward; a gathered one's lies in `absent` while it is away
    at::Tensor master;    ///< (shard_numel,) of this rank; a part of `whole` if dtype and residence allow
    at::Tensor gradient;  ///< (shard_numel,) the reduced gradient in the master's dtype; undefined for a frozen one
  };

  struct Slice {
    ShardSlice place;
    at::Tensor leaf;      ///< (numel,) over the master
    at::Tensor gradient;  ///< (numel,) over the flat's gradient; undefined for a frozen one
  };

  /// Collective over `group`, whose ranks hold one shard each. Takes memory and the parameters' present values, flat by
  /// flat, and frees the model's own memory. All get the values of rank 0 of `world`, verified by hash.
  ShardedParameters(std::vector<Parameter> parameters, ShardPlan plan, std::shared_ptr<Communicator> group,
                    Communicator& world, const Options& options);
  ~ShardedParameters();
  ShardedParameters(const ShardedParameters&) = delete;
  ShardedParameters& operator=(const ShardedParameters&) = delete;

  /// For the next placing of the same model; nothing else may be called afterwards.
  std::vector<Parameter> take_parameters() { return std::move(parameters_); }

  const ShardPlan& plan() const noexcept { return plan_; }
  const std::vector<Parameter>& parameters() const noexcept { return parameters_; }
  std::vector<Flat>& flats() noexcept { return flats_; }
  const std::vector<Flat>& flats() const noexcept { return flats_; }
  const std::vector<Slice>& slices() const noexcept { return slices_; }
  /// Whether it is one of the model's parameters.
  bool has(const at::Tensor& tensor) const { return index_.contains(tensor.unsafeGetTensorImpl()); }
  std::size_t index_of(const at::Tensor& tensor) const { return index_.at(tensor.unsafeGetTensorImpl()); }
  /// The parameter of the model in this layout, under whatever name it was found.
  const Parameter& parameter_of(const at::Tensor& tensor) const { return parameters_[index_of(tensor)]; }
  /// This rank's slice of the parameter with that index; nullptr if it has none.
  const Slice* slice_at(std::size_t parameter) const {
    return slice_of_[parameter] < 0 ? nullptr : &slices_[static_cast<std::size_t>(slice_of_[parameter])];
  }
  /// This rank's slice of a parameter of the model; empty if it has none. Undefined for a tensor that is not the
  /// model's.
  at::Tensor slice_of(const at::Tensor& parameter) const;

  /// Throws Error(usage) if the program itself has changed a parameter: all ranks may share that memory, and copies get
  /// the owners' values instead. Changes by way of `data()` are not noticed.
  void check_unchanged(const std::string& strategy) const;

  /// Collective: makes the masters' new values visible to forward, on all ranks.
  void publish();

  /// Zeros for a tensor that belongs to a master, in the masters' memory: (numel,).
  at::Tensor shard_memory(std::int64_t numel, at::ScalarType dtype) const;
  /// The memory for a flat's reduced gradient: (shard_numel,) in the master's dtype.
  void set_gradient(std::size_t flat, const at::Tensor& memory);

  /// A gathered flat's memory: empty, or (numel,) elements of the dtype of forward.
  void put(std::size_t flat, at::Tensor memory);
  at::Tensor take_away(std::size_t flat);
  bool is_here(std::size_t flat) const;

  c10::Device device() const noexcept { return group_->device(); }  ///< of wholes
  bool offloads() const noexcept { return offloads_; }              ///< masters lie elsewhere
  Communicator& group() noexcept { return *group_; }

 private:
  void place(std::size_t flat, const Options& options);
  void make_slices();

  std::vector<Parameter> parameters_;
  std::vector<std::uint32_t> versions_;  // of their tensors, which this class writes only through other tensors
  ShardPlan plan_;
  std::shared_ptr<Communicator> group_;
  bool offloads_ = false;
  std::vector<Flat> flats_;
  std::vector<at::Tensor> memory_;  // of gathered flats, while they are here
  std::vector<Slice> slices_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> index_;  // model's parameter -> parameters_
  std::vector<std::int64_t> slice_of_;                             // by parameter: index into slices_, or -1
};

}  // namespace troupe
