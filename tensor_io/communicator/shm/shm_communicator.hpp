#pragma once
#include <memory>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/communicator/shm/shm_group.hpp"

namespace troupe {

/// Collectives between threads or processes of one host.
///
/// If every rank's tensor lies in memory from allocate() ("a window": each rank maps all of them), the ranks work in
/// place. The owner of a slice reads it from all and *pushes* the result into every rank's memory. Pulling would leave
/// the lines shared between cores, and the next gradient written there would wait for each of them. Else data goes in
/// chunks through outboxes in the control segment, written past the caches.
class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(CommunicatorOptions options, std::unique_ptr<ShmGroup> group);
  std::string_view backend() const noexcept override { return "shm"; }

 private:
  /// The result of one allocate(): a segment of each rank, mapped here.
  using Window = std::vector<std::shared_ptr<SharedSegment>>;  // by rank

  void do_all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record) override;
  void do_all_reduce_update(const at::Tensor& gradients, const ReducedUpdate& update,
                            const CollectiveRecord& record) override;
  void do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                         const CollectiveRecord& record) override;
  void do_all_gather(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord& record) override;
  void do_broadcast(const at::Tensor& tensor, int root, const CollectiveRecord& record) override;
  void do_reduce(const at::Tensor& tensor, int root, ReduceOp op, const CollectiveRecord& record) override;
  void do_gather(const at::Tensor& output, const at::Tensor& input, int root, const CollectiveRecord& record) override;
  void do_scatter(const at::Tensor& output, const at::Tensor& input, int root, const CollectiveRecord& record) override;
  void do_all_to_all(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord& record) override;
  void do_send(const at::Tensor& tensor, int destination, const CollectiveRecord& record) override;
  void do_recv(const at::Tensor& tensor, int source, const CollectiveRecord& record) override;
  void do_barrier(const CollectiveRecord& record) override;
  at::Tensor do_allocate(std::int64_t bytes, const CollectiveRecord& record) override;
  at::Tensor do_allocate_shared(std::int64_t bytes, const CollectiveRecord& record) override;
  void do_abort(const ErrorReport& reason) noexcept override { group_->abort(reason); }

  /// The memory that `rank` made, and showed at the last meeting. Throws Error(unavailable).
  std::shared_ptr<SharedSegment> memory_of(int rank, std::size_t length) const;
  /// After an allocation: whether all have mapped their parts; `problem`: this rank's reason not to. Throws on all
  /// ranks or on none.
  void agree_on_memory(const CollectiveRecord& record, std::string problem);

  /// Meets, showing the place of this rank's tensor. True, with `pointers_` to every rank's, if all lie in windows.
  bool meet_in_windows(const at::Tensor& tensor, const CollectiveRecord& record);
  /// The place of `tensor` in every rank's memory: in rank order if it lies in a window, one place if all share it.
  /// Throws Error(usage) if it lies in neither.
  std::vector<float*> on_all_ranks(const at::Tensor& tensor) const;
  /// For each chunk of at most `capacity` of `bytes`: stage(offset, count), meet, take(offset, count). One meeting even
  /// without bytes; the first compares the records, unless that is done.
  template <class Stage, class Take>
  void in_chunks(std::int64_t bytes, std::int64_t capacity, const CollectiveRecord& record, bool compared, Stage stage,
                 Take take);
  void all_reduce_in_words(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record);
  void all_reduce_in_place(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record);
  void all_reduce_staged(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record, bool compared);
  void all_reduce_by_slices(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record);
  /// inputs_[*] -> outputs_[*], `bytes` each.
  void reduce_here(const CollectiveRecord& record, ReduceOp op, std::int64_t bytes);
  /// Bytes that one of world_size equal parts of an outbox holds.
  std::int64_t part_bytes() const noexcept;

  std::unique_ptr<ShmGroup> group_;
  std::vector<Window> windows_;
  std::vector<std::weak_ptr<SharedSegment>> shared_;  // from allocate_shared()
  std::vector<std::byte*> pointers_;                  // by rank; valid until the next meet_in_windows
  std::vector<const void*> inputs_;                   // scratch of reduce_here
  std::vector<void*> outputs_;
};

}  // namespace troupe
