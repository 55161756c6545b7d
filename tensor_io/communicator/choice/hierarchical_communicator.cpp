#include "tensor_io/communicator/choice/hierarchical_communicator.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "tensor_io/communicator/communicator_arguments.hpp"
#include "tensor_io/kernels/reduce_kernels.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kPieceBytes = 4 * 1024 * 1024;  // scratch memory of one step of a composed operation

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

// Until the whole sum is there.
ReduceOp between_ranks(ReduceOp op) { return op == ReduceOp::avg ? ReduceOp::sum : op; }

// A sum of f16 may be beyond 65,504 where the average is not.
bool averages_early(const at::Tensor& tensor, ReduceOp op) {
  return op == ReduceOp::avg && (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
}

}  // namespace

HierarchicalCommunicator::HierarchicalCommunicator(CommunicatorOptions given, const std::vector<std::string>& hosts)
    : Communicator(std::move(given)) {
  std::map<std::string, int> numbers;
  for (int r = 0; r < world_size(); ++r) {
    const auto [known, is_new] = numbers.emplace(hosts[r], static_cast<int>(hosts_.size()));
    if (is_new) hosts_.emplace_back();
    host_of_.push_back(known->second);
    local_of_.push_back(static_cast<int>(hosts_[known->second].ranks.size()));
    hosts_[known->second].ranks.push_back(r);
    most_in_a_host_ = std::max<std::int64_t>(most_in_a_host_, local_of_[r] + 1);
  }
  const int host = host_of_[rank()];
  const auto part = [&](const std::string& name, const std::vector<int>& ranks, std::string backend,
                        std::chrono::milliseconds timeout) {
    CommunicatorOptions of_part = options();
    of_part.name += "/" + name;
    of_part.world_size = static_cast<int>(ranks.size());
    of_part.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
    of_part.backend = std::move(backend);
    of_part.timeout = timeout;
    of_part.members.clear();
    for (const int r : ranks) of_part.members.push_back(member(r));
    return make_communicator(std::move(of_part));
  };
  const auto timeout = options().timeout;
  const std::string number = std::to_string(host);
  up_ = part("host" + number, hosts_[host].ranks, "auto", timeout);
  down_ = part("host" + number + "-down", hosts_[host].ranks, "auto", 3 * timeout + 2s);
  std::vector<int> leaders;
  for (const auto& one : hosts_) leaders.push_back(one.ranks.front());
  if (local_of_[rank()] == 0) leaders_ = part("leaders", leaders, "gloo", 2 * timeout + 1s);
  std::vector<int> all(world_size());
  for (int r = 0; r < world_size(); ++r) all[r] = r;
  flat_ = part("flat", all, "gloo", timeout);
}

std::int64_t HierarchicalCommunicator::place_of(int rank) const {
  return host_of_[rank] * most_in_a_host_ + local_of_[rank];
}

void HierarchicalCommunicator::follow_step() {
  for (auto* part : {up_.get(), leaders_.get(), down_.get(), flat_.get()}) {
    if (part != nullptr) part->ledger().set_step(ledger().step());
  }
}

void HierarchicalCommunicator::do_abort(const ErrorReport& reason) noexcept {
  for (auto* part : {up_.get(), leaders_.get(), down_.get(), flat_.get()}) {
    if (part != nullptr) part->abort(reason);
  }
}

void HierarchicalCommunicator::reduce_in_host(const at::Tensor& tensor, ReduceOp op, std::string_view label) {
  if (!averages_early(tensor, op)) return up_->all_reduce(tensor, between_ranks(op), label);
  up_->all_reduce(tensor, op, label);
  if (leaders_) tensor.mul_(static_cast<double>(up_->world_size()) / world_size());
}

void HierarchicalCommunicator::divide(const at::Tensor& tensor, ReduceOp op) const {
  if (op != ReduceOp::avg || averages_early(tensor, op)) return;
  const void* input = tensor.data_ptr();
  void* output = tensor.data_ptr();
  troupe::reduce(ReduceTask{element_of(tensor.scalar_type()), Reduction::sum, world_size(), &input, 1, &output, 1,
                            tensor.numel()});
}

void HierarchicalCommunicator::do_all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record) {
  follow_step();
  const at::NoGradGuard no_grad;
  const std::string_view label = record.label.data();
  const auto all = tensor.detach();
  reduce_in_host(all, op, label);
  if (leaders_) {
    leaders_->all_reduce(all, between_ranks(op), label);
    divide(all, op);
  }
  down_->broadcast(all, 0, label);
}

void HierarchicalCommunicator::do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                                 const CollectiveRecord& record) {
  follow_step();
  const at::NoGradGuard no_grad;
  const std::string_view label = record.label.data();
  const auto slices = input.detach().view({world_size(), output.numel()});
  const auto flat = output.detach().view({-1});
  const auto places = most_in_a_host_ * static_cast<std::int64_t>(hosts_.size());
  const std::int64_t piece =
      std::max<std::int64_t>(1, kPieceBytes / static_cast<std::int64_t>(output.element_size()) / places);
  std::int64_t at = 0;
  do {
    const auto count = std::min(piece, output.numel() - at);
    const auto by_host = at::zeros({places, count}, flat.options());
    for (int r = 0; r < world_size(); ++r) by_host[place_of(r)].copy_(slices[r].narrow(0, at, count));
    reduce_in_host(by_host, op, label);
    const auto of_host = at::empty({most_in_a_host_, count}, flat.options());
    if (leaders_) {
      leaders_->reduce_scatter(of_host, by_host, between_ranks(op), label);
      divide(of_host, op);
    }
    down_->broadcast(of_host, 0, label);
    flat.narrow(0, at, count).copy_(of_host[local_of_[rank()]]);
    at += piece;
  } while (at < output.numel());
}

void HierarchicalCommunicator::do_all_gather(const at::Tensor& output, const at::Tensor& input,
                                             const CollectiveRecord& record) {
  follow_step();
  const std::string_view label = record.label.data();
  const auto bytes = static_cast<std::int64_t>(input.nbytes());
  const auto& own = hosts_[host_of_[rank()]].ranks;
  const auto places = most_in_a_host_ * static_cast<std::int64_t>(hosts_.size());
  const std::int64_t piece = std::max<std::int64_t>(64, kPieceBytes / places);
  const auto byte = at::TensorOptions().dtype(at::kByte);
  std::int64_t at = 0;
  do {
    const auto count = std::min(piece, bytes - at);
    const auto part = at::from_blob(bytes_of(input) + at, {count}, byte);
    const auto everything = at::zeros({places * count}, byte);
    if (leaders_) {
      const auto of_host = at::zeros({most_in_a_host_ * count}, byte);
      up_->gather(of_host.narrow(0, 0, static_cast<std::int64_t>(own.size()) * count), part, 0, label);
      leaders_->all_gather(everything, of_host, label);
    } else {
      up_->gather(at::Tensor(), part, 0, label);
    }
    down_->broadcast(everything, 0, label);
    for (int r = 0; r < world_size() && count > 0; ++r) {
      if (r == rank() && bytes_of(output) + r * bytes == bytes_of(input)) continue;
      std::memcpy(bytes_of(output) + r * bytes + at, bytes_of(everything) + place_of(r) * count, count);
    }
    at += piece;
  } while (at < bytes);
}

void HierarchicalCommunicator::do_broadcast(const at::Tensor& tensor, int root, const CollectiveRecord& record) {
  follow_step();
  const std::string_view label = record.label.data();
  if (host_of_[root] == host_of_[rank()]) up_->broadcast(tensor, local_of_[root], label);
  if (leaders_) leaders_->broadcast(tensor, host_of_[root], label);
  if (host_of_[root] != host_of_[rank()]) down_->broadcast(tensor, 0, label);
}

void HierarchicalCommunicator::do_barrier(const CollectiveRecord& record) {
  follow_step();
  const std::string_view label = record.label.data();
  up_->barrier(label);
  if (leaders_) leaders_->barrier(label);
  down_->barrier(label);
}

void HierarchicalCommunicator::do_reduce(const at::Tensor& tensor, int root, ReduceOp op,
                                         const CollectiveRecord& record) {
  follow_step();
  flat_->reduce(tensor, root, op, record.label.data());
}
void HierarchicalCommunicator::do_gather(const at::Tensor& output, const at::Tensor& input, int root,
                                         const CollectiveRecord& record) {
  follow_step();
  flat_->gather(output, input, root, record.label.data());
}
void HierarchicalCommunicator::do_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                                          const CollectiveRecord& record) {
  follow_step();
  flat_->scatter(output, input, root, record.label.data());
}
void HierarchicalCommunicator::do_all_to_all(const at::Tensor& output, const at::Tensor& input,
                                             const CollectiveRecord& record) {
  follow_step();
  flat_->all_to_all(output, input, record.label.data());
}

void HierarchicalCommunicator::do_send(const at::Tensor& tensor, int destination, const CollectiveRecord& record) {
  follow_step();
  const bool near = host_of_[destination] == host_of_[rank()];
  near ? up_->send(tensor, local_of_[destination], record.label.data())
       : flat_->send(tensor, destination, record.label.data());
}
void HierarchicalCommunicator::do_recv(const at::Tensor& tensor, int source, const CollectiveRecord& record) {
  follow_step();
  const bool near = host_of_[source] == host_of_[rank()];
  near ? up_->recv(tensor, local_of_[source], record.label.data()) : flat_->recv(tensor, source, record.label.data());
}

at::Tensor HierarchicalCommunicator::do_allocate(std::int64_t bytes, const CollectiveRecord&) {
  return up_->allocate(bytes, at::kByte);
}

}  // namespace troupe
