#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

class GlooMesh;

/// Collectives over TCP, on Gloo's transport but not with its algorithms. Gloo's ring rounds f16 and bf16 after every
/// addition, and adds in an order that depends on the place in the tensor. Its reduce_scatter is slower than its
/// all_reduce. Here each rank receives one slice from all others, adds them in rank order in f32 and sends the result
/// to all. The wire carries as many bytes as with Gloo's ring, and the bits are those of shm.
///
/// TCP shows a lost connection but not the rank at fault. So after a failure each rank leaves its present operation at
/// the rendezvous and reads the others'. A silent rank is missing or dead, and a rank at another call is named.
class GlooCommunicator final : public Communicator {
 public:
  /// Collective.
  explicit GlooCommunicator(CommunicatorOptions options);
  ~GlooCommunicator() override;
  std::string_view backend() const noexcept override { return "gloo"; }

 private:
  void do_all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record) override;
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
  void do_abort(const ErrorReport& reason) noexcept override;

  /// Runs `work`; turns Gloo's exceptions into an Error that names ranks.
  template <class Work>
  void guarded(const CollectiveRecord& record, Work&& work);
  ErrorReport explain(const CollectiveRecord& record, bool timed_out, const std::string& what);
  void leave_word(ErrorCode code, const CollectiveRecord& record, const std::string& cause) noexcept;

  void all_reduce_small(std::byte* data, std::int64_t bytes, ReduceOp op, const CollectiveRecord& record);
  void all_reduce_large(std::byte* data, std::int64_t bytes, ReduceOp op, const CollectiveRecord& record);
  /// This rank's `own` and the others' parts in `scratch`, one `stride` apart, -> output.
  void reduce_parts(const std::byte* own, const std::byte* scratch, std::int64_t stride, std::byte* output,
                    std::int64_t bytes, ReduceOp op, const CollectiveRecord& record);
  std::byte* scratch(std::int64_t bytes);

  std::vector<std::byte> scratch_;
  std::vector<const void*> inputs_;
  std::atomic<bool> left_word_{false};
  std::unique_ptr<GlooMesh> mesh_;  // last: it ends before the memory that it writes to
};

}  // namespace troupe
