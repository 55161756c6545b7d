#pragma once
#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// A group of one rank: every collective is a copy, or nothing.
class SingleCommunicator final : public Communicator {
 public:
  explicit SingleCommunicator(CommunicatorOptions options) : Communicator(std::move(options)) {}
  std::string_view backend() const noexcept override { return "single"; }

 private:
  void do_all_reduce(const at::Tensor&, ReduceOp, const CollectiveRecord&) override {}
  void do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp,
                         const CollectiveRecord&) override {
    copy(output, input);
  }
  void do_all_gather(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord&) override {
    copy(output, input);
  }
  void do_broadcast(const at::Tensor&, int, const CollectiveRecord&) override {}
  void do_reduce(const at::Tensor&, int, ReduceOp, const CollectiveRecord&) override {}
  void do_gather(const at::Tensor& output, const at::Tensor& input, int, const CollectiveRecord&) override {
    copy(output, input);
  }
  void do_scatter(const at::Tensor& output, const at::Tensor& input, int, const CollectiveRecord&) override {
    copy(output, input);
  }
  void do_all_to_all(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord&) override {
    copy(output, input);
  }
  void do_send(const at::Tensor&, int, const CollectiveRecord&) override {}  // the checks leave no rank to send to
  void do_recv(const at::Tensor&, int, const CollectiveRecord&) override {}
  void do_barrier(const CollectiveRecord&) override {}
  at::Tensor do_allocate_shared(std::int64_t bytes, const CollectiveRecord& record) override {
    return do_allocate(bytes, record);
  }
  void do_abort(const ErrorReport&) noexcept override {}
  static void copy(const at::Tensor& output, const at::Tensor& input);
};

}  // namespace troupe
