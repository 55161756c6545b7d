#include "launch/testing/cut_communicator.hpp"

#include <utility>

#include "tensor_io/communicator/communicator_errors.hpp"

namespace troupe::testing {
namespace {

std::string_view label_of(const CollectiveRecord& record) { return record.label.data(); }

}  // namespace

// What a rank at the other side says, that it gives up for instance, does not come through either.
template <class Work>
auto CutCommunicator::across(const std::set<int>& hosts, const CollectiveRecord& record, Work work) {
  inner_->ledger().set_step(record.step);
  const auto free_within = [&] {
    return network_->await_way(hosts, Network::Clock::now() + options().timeout, given_up_);
  };
  if (!free_within()) {
    const auto ranks = beyond_cut();
    throw Error(ErrorCode::timeout, "",
                (ranks.empty() ? "ranks that do not reach each other" : name_ranks(options(), ranks)) +
                    " did not come within " + std::to_string(options().timeout.count()) + " ms",
                "the network is cut");
  }
  try {
    return work();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::fenced) free_within();
    throw;
  }
}

CutCommunicator::CutCommunicator(CommunicatorOptions options, std::unique_ptr<Communicator> inner,
                                 std::vector<int> hosts, std::shared_ptr<Network> network)
    : Communicator(std::move(options)),
      inner_(std::move(inner)),
      hosts_(std::move(hosts)),
      all_hosts_(hosts_.begin(), hosts_.end()),
      network_(std::move(network)) {
  if (network_->await_way(all_hosts_, Network::Clock::now() + this->options().timeout, given_up_)) return;
  const auto ranks = beyond_cut();
  const auto name = "communicator '" + this->options().name + "'";
  if (ranks.empty()) throw Error(ErrorCode::timeout, name, "other ranks do not reach each other", "the network is cut");
  std::vector<int> members;
  members.reserve(ranks.size());
  for (const int rank : ranks) members.push_back(member(rank));
  throw LinkFault({.code = ErrorCode::unavailable,
                   .operation = name,
                   .cause = name_ranks(this->options(), ranks) + " cannot be reached: the network is cut"},
                  members);
}

std::vector<int> CutCommunicator::beyond_cut() const {
  std::vector<int> ranks;
  for (int other = 0; other < world_size(); ++other) {
    if (network_->is_cut(hosts_[static_cast<std::size_t>(rank())], hosts_[static_cast<std::size_t>(other)]))
      ranks.push_back(other);
  }
  return ranks;
}

std::set<int> CutCommunicator::hosts_with(int peer) const {
  return {hosts_[static_cast<std::size_t>(rank())], hosts_[static_cast<std::size_t>(peer)]};
}

void CutCommunicator::do_all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record) {
  across(all_hosts_, record, [&] { inner_->all_reduce(tensor, op, label_of(record)); });
}

void CutCommunicator::do_all_reduce_update(const at::Tensor& gradients, const ReducedUpdate& update,
                                           const CollectiveRecord& record) {
  across(all_hosts_, record, [&] { inner_->all_reduce_update(gradients, update, label_of(record)); });
}

void CutCommunicator::do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                        const CollectiveRecord& record) {
  across(all_hosts_, record, [&] { inner_->reduce_scatter(output, input, op, label_of(record)); });
}

void CutCommunicator::do_all_gather(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord& record) {
  across(all_hosts_, record, [&] { inner_->all_gather(output, input, label_of(record)); });
}

void CutCommunicator::do_broadcast(const at::Tensor& tensor, int root, const CollectiveRecord& record) {
  across(all_hosts_, record, [&] { inner_->broadcast(tensor, root, label_of(record)); });
}

void CutCommunicator::do_reduce(const at::Tensor& tensor, int root, ReduceOp op, const CollectiveRecord& record) {
  across(all_hosts_, record, [&] { inner_->reduce(tensor, root, op, label_of(record)); });
}

void CutCommunicator::do_gather(const at::Tensor& output, const at::Tensor& input, int root,
                                const CollectiveRecord& record) {
  across(all_hosts_, record, [&] { inner_->gather(output, input, root, label_of(record)); });
}

void CutCommunicator::do_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                                 const CollectiveRecord& record) {
  across(all_hosts_, record, [&] { inner_->scatter(output, input, root, label_of(record)); });
}

void CutCommunicator::do_all_to_all(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord& record) {
  across(all_hosts_, record, [&] { inner_->all_to_all(output, input, label_of(record)); });
}

void CutCommunicator::do_send(const at::Tensor& tensor, int destination, const CollectiveRecord& record) {
  across(hosts_with(destination), record, [&] { inner_->send(tensor, destination, label_of(record)); });
}

void CutCommunicator::do_recv(const at::Tensor& tensor, int source, const CollectiveRecord& record) {
  across(hosts_with(source), record, [&] { inner_->recv(tensor, source, label_of(record)); });
}

void CutCommunicator::do_barrier(const CollectiveRecord& record) {
  across(all_hosts_, record, [&] { inner_->barrier(label_of(record)); });
}

at::Tensor CutCommunicator::do_allocate(std::int64_t bytes, const CollectiveRecord& record) {
  return across(all_hosts_, record, [&] { return inner_->allocate(bytes, at::kByte); });
}

at::Tensor CutCommunicator::do_allocate_shared(std::int64_t bytes, const CollectiveRecord& record) {
  return across(all_hosts_, record, [&] { return inner_->allocate_shared(bytes, at::kByte); });
}

void CutCommunicator::do_abort(const ErrorReport& reason) noexcept {
  given_up_ = true;
  inner_->abort(reason);
  network_->wake();
}

}  // namespace troupe::testing
