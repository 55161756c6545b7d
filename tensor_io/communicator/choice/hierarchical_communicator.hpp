#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// Ranks of several hosts: inside a host by shared memory, between the hosts' first ranks (leaders) by TCP. So a tensor
/// crosses the network once per host and not once per rank. Hosts may hold different numbers of ranks. Operations that
/// gain nothing from that go over plain TCP between all (reduce, gather, scatter, all_to_all, send and recv between
/// hosts).
///
/// Waiting times are staggered: a rank waits longer for its leader than the leader waits for its peers. So the leader
/// gives up first, and names the missing ranks.
class HierarchicalCommunicator final : public Communicator {
 public:
  /// Collective. `hosts` by rank.
  HierarchicalCommunicator(CommunicatorOptions options, const std::vector<std::string>& hosts);
  std::string_view backend() const noexcept override { return "hierarchical"; }

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
  at::Tensor do_allocate(std::int64_t bytes, const CollectiveRecord& record) override;
  void do_abort(const ErrorReport& reason) noexcept override;

  /// This host's share of a reduction -> `tensor`, on its leader. Data on the network has the tensor's dtype: in f16
  /// and bf16 the sum of a host is rounded, and that of all hosts once more.
  void reduce_in_host(const at::Tensor& tensor, ReduceOp op, std::string_view label);
  /// The sum over all hosts -> the average, if `op` wants it and it is not done yet.
  void divide(const at::Tensor& tensor, ReduceOp op) const;
  /// A rank's place among all hosts: each host has as many places as the largest, and a smaller one leaves some of them
  /// empty.
  std::int64_t place_of(int rank) const;
  /// The ledgers of the parts count in the same step as this one.
  void follow_step();

  struct Host {
    std::vector<int> ranks;  // ascending; the first leads
  };
  std::vector<Host> hosts_;
  std::vector<int> host_of_;               // by rank
  std::vector<int> local_of_;              // by rank: place in its host
  std::int64_t most_in_a_host_ = 0;        // ranks
  std::unique_ptr<Communicator> up_;       // this host's ranks, before the leaders communicate
  std::unique_ptr<Communicator> leaders_;  // leaders only
  std::unique_ptr<Communicator> down_;     // this host's ranks, after the leaders: a longer deadline
  std::unique_ptr<Communicator> flat_;     // all ranks
};

}  // namespace troupe
