#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/communicator/communicator_registry.hpp"

namespace troupe::test {

/// What a Relay does wrong.
enum class Fault : std::uint8_t {
  none,
  product,
  last_element,
  gather_order,
  root,
  others,
  transpose,
  received,
  nan,
  rounding,
  key
};

/// A back end from outside: all over Gloo, with a fault.
class Relay final : public Communicator {
 public:
  Relay(const CommunicatorOptions& options, Fault fault)
      : Communicator(options), fault_(fault), inner_(make_communicator(over_gloo(options))) {}
  std::string_view backend() const noexcept override { return "relay"; }

 private:
  static CommunicatorOptions over_gloo(CommunicatorOptions options) {
    options.backend = "gloo";
    options.name += "/relay";
    return options;
  }

  void do_all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord&) override {
    const auto before = tensor.clone();
    if (fault_ == Fault::rounding && op == ReduceOp::sum) return add_in_type(tensor);
    inner_->all_reduce(tensor, fault_ == Fault::product && op == ReduceOp::product ? ReduceOp::sum : op);
    if (fault_ == Fault::last_element && tensor.numel() > 1'000) tensor[-1] = before[-1];
    if (fault_ == Fault::nan && at::isFloatingType(tensor.scalar_type())) tensor.copy_(at::nan_to_num(tensor, 0.0));
  }
  void do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                         const CollectiveRecord&) override {
    inner_->reduce_scatter(output, input, op);
  }
  void do_all_gather(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord&) override {
    inner_->all_gather(output, input);
    if (fault_ == Fault::gather_order) output.copy_(output.view({world_size(), -1}).flip(0).reshape(-1));
  }
  void do_broadcast(const at::Tensor& tensor, int root, const CollectiveRecord&) override {
    inner_->broadcast(tensor, fault_ == Fault::root ? 0 : root);
  }
  void do_reduce(const at::Tensor& tensor, int root, ReduceOp op, const CollectiveRecord&) override {
    fault_ == Fault::others ? inner_->all_reduce(tensor, op) : inner_->reduce(tensor, root, op);
  }
  void do_gather(const at::Tensor& output, const at::Tensor& input, int root, const CollectiveRecord&) override {
    inner_->gather(output, input, root);
  }
  void do_scatter(const at::Tensor& output, const at::Tensor& input, int root, const CollectiveRecord&) override {
    inner_->scatter(output, input, root);
  }
  void do_all_to_all(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord&) override {
    inner_->all_to_all(output, input);
    if (fault_ == Fault::transpose) output.copy_(input);
  }
  void do_send(const at::Tensor& tensor, int destination, const CollectiveRecord&) override {
    inner_->send(tensor, destination);
  }
  void do_recv(const at::Tensor& tensor, int source, const CollectiveRecord&) override {
    inner_->recv(tensor, source);
    if (fault_ == Fault::received && tensor.numel() > 65'536) tensor[65'536] = 0.5;
  }
  void do_barrier(const CollectiveRecord&) override { inner_->barrier(); }
  std::unique_ptr<Communicator> do_split(std::optional<CommunicatorOptions> group, int color, int key) override {
    if (group && fault_ == Fault::key) group->rank = group->world_size - 1 - group->rank;
    return Communicator::do_split(std::move(group), color, key);
  }
  void do_abort(const ErrorReport& reason) noexcept override { inner_->abort(reason); }

  // Each addition is rounded to the tensor's type.
  void add_in_type(const at::Tensor& tensor) {
    const auto all = at::empty({tensor.numel() * world_size()}, tensor.scalar_type());
    inner_->all_gather(all, tensor);
    for (int r = 0; r < world_size(); ++r) {
      const auto part = all.narrow(0, r * tensor.numel(), tensor.numel());
      r == 0 ? tensor.copy_(part) : tensor.copy_(tensor + part);
    }
  }

  const Fault fault_;
  std::unique_ptr<Communicator> inner_;
};

/// As a user's program does.
inline void register_relay(const std::string& name, Fault fault) {
  register_communicator(name, "over Gloo, for a test", [fault](const CommunicatorOptions& options) {
    return std::make_unique<Relay>(options, fault);
  });
}

}  // namespace troupe::test
