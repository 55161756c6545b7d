#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/communicator/nccl/nccl_lifecycle.hpp"
#include "tensor_io/communicator/nccl/nccl_watchdog.hpp"
#include "tensor_io/device/device_timer.hpp"

namespace troupe {

/// Collectives between devices, by NCCL. Tensors of the CPU go over `host`, a communicator of the same ranks: votes and
/// layouts are small, and must not wait for a device.
///
/// - A call returns when the collective is in this communicator's stream, of high priority.
///   The calling thread's current stream waits for it there, so later work of that thread sees the result.
///   The host does not wait. To read the numbers on the host, call wait_on_host.
/// - Order, shape and dtype are the ranks' own affair: NCCL compares nothing, and a mismatch shows as a
///   timeout. The supervisors' ledgers name the ranks then.
/// - NCCL chooses the order and the precision of additions by size, topology and version.
///   The bits are the same on the same machine,
///   but they are not those of the CPU's back ends.
/// - allocate() gives memory of the device from ncclMemAlloc, registered with NCCL as a window,
///   so that it is sent from its place.
///   It stays with this communicator's device;
///   the window goes with the communicator.
/// - A collective that is not over after `timeout`,
///   or an error that NCCL finds in the background,
///   breaks the communicator from a watching thread (NcclFlights).
///   The next call, and wait_on_host, throw it.
class NcclCommunicator final : public Communicator {
 public:
  /// Collective. `host` may be empty if `options.device` is the CPU itself, which only a test's NCCL can serve.
  NcclCommunicator(CommunicatorOptions options, std::unique_ptr<Communicator> host);
  ~NcclCommunicator() override;
  std::string_view backend() const noexcept override { return "nccl"; }
  std::vector<TimedInterval> take_device_waits() override { return waits_.take(); }

 private:
  struct Window;
  NcclCommunicator(CommunicatorOptions options, std::unique_ptr<Communicator> host, std::unique_ptr<NcclLife> life);

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
  at::Tensor do_allocate(std::int64_t bytes, const CollectiveRecord& record) override;
  std::unique_ptr<Communicator> do_split(std::optional<CommunicatorOptions> group, int color, int key) override;
  void do_abort(const ErrorReport& reason) noexcept override;

  void watch();
  bool on_host(const at::Tensor& tensor) const noexcept { return host_ && tensor.device().is_cpu(); }
  /// The communicator for the CPU's tensors, at this record's step.
  Communicator& host(const CollectiveRecord& record);
  /// Launches `calls` after the present work of the current stream, and makes that stream wait for them.
  /// `then`, if there is any, launches kernels behind them in the communicator's stream.
  void launch(const CollectiveRecord& record, const std::vector<at::Tensor>& tensors, const NcclLife::Calls& calls,
              const std::function<void()>& then = {});
  std::function<void()> divide_sum(ReduceOp& op, const at::Tensor& sum) const;

  std::unique_ptr<Communicator> host_;
  DeviceStream stream_;
  DeviceEvent before_;  // the collective waits for it
  DeviceWaits waits_;   // if the options want them
  std::shared_ptr<NcclLife> life_;
  std::unique_ptr<NcclFlights> flights_;  // last but one: its thread uses the life
  at::Tensor barrier_;
};

/// Makes NCCL's communicator of `options.device`; collective. Error(unavailable) in a build without CUDA.
std::unique_ptr<Communicator> make_nccl_communicator(CommunicatorOptions options);

}  // namespace troupe
