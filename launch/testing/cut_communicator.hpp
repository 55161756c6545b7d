#pragma once
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launch/testing/network.hpp"
#include "tensor_io/communicator/communicator.hpp"

namespace troupe::testing {

/// Around another communicator, whose ranks are on several hosts of a cluster. An operation waits while its hosts are
/// parted, and is Error(timeout) past its deadline. One that all ranks had begun before is over.
class CutCommunicator final : public Communicator {
 public:
  /// Collective; waits as an operation does, and throws LinkFault past the deadline. `hosts`: of the ranks. `options`
  /// are those of `inner`, but `host` and the back end are the cluster's.
  CutCommunicator(CommunicatorOptions options, std::unique_ptr<Communicator> inner, std::vector<int> hosts,
                  std::shared_ptr<Network> network);
  std::string_view backend() const noexcept override { return inner_->backend(); }
  std::vector<TimedInterval> take_device_waits() override { return inner_->take_device_waits(); }

 private:
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
  void do_abort(const ErrorReport& reason) noexcept override;

  template <class Work>
  auto across(const std::set<int>& hosts, const CollectiveRecord& record, Work work);
  std::set<int> hosts_with(int peer) const;
  std::vector<int> beyond_cut() const;  // ranks that this one does not reach now

  const std::unique_ptr<Communicator> inner_;
  const std::vector<int> hosts_;  // by rank
  const std::set<int> all_hosts_;
  const std::shared_ptr<Network> network_;
  std::atomic<bool> given_up_{false};
};

}  // namespace troupe::testing
