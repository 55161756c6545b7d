#pragma once
#include <functional>
#include <string_view>
#include <utility>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe::simulator {

/// A communicator without wires: the rank's model moves the pieces; the supervisor sees only the ledger and
/// `abort`.
class ModelCommunicator final : public Communicator {
 public:
  ModelCommunicator(CommunicatorOptions options, std::function<void(const ErrorReport&)> aborted)
      : Communicator(std::move(options)), aborted_(std::move(aborted)) {}
  std::string_view backend() const noexcept override { return "model"; }

 private:
  void do_all_reduce(const at::Tensor&, ReduceOp, const CollectiveRecord&) override {}
  void do_reduce_scatter(const at::Tensor&, const at::Tensor&, ReduceOp, const CollectiveRecord&) override {}
  void do_all_gather(const at::Tensor&, const at::Tensor&, const CollectiveRecord&) override {}
  void do_broadcast(const at::Tensor&, int, const CollectiveRecord&) override {}
  void do_reduce(const at::Tensor&, int, ReduceOp, const CollectiveRecord&) override {}
  void do_gather(const at::Tensor&, const at::Tensor&, int, const CollectiveRecord&) override {}
  void do_scatter(const at::Tensor&, const at::Tensor&, int, const CollectiveRecord&) override {}
  void do_all_to_all(const at::Tensor&, const at::Tensor&, const CollectiveRecord&) override {}
  void do_send(const at::Tensor&, int, const CollectiveRecord&) override {}
  void do_recv(const at::Tensor&, int, const CollectiveRecord&) override {}
  void do_barrier(const CollectiveRecord&) override {}
  void do_abort(const ErrorReport& reason) noexcept override { aborted_(reason); }

  std::function<void(const ErrorReport&)> aborted_;
};

}  // namespace troupe::simulator
