#include "tensor_io/layers/tensor_parallel.hpp"

#include <torch/torch.h>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor reduced(const at::Tensor& x, Communicator& communicator) {
  auto sum = x.clone(at::MemoryFormat::Contiguous);
  communicator.all_reduce(sum.view(-1), ReduceOp::sum, "tensor parallel");
  return sum;
}

/// All ranks' x, one behind the other along `dim`.
at::Tensor gathered(const at::Tensor& x, std::int64_t dim, Communicator& communicator) {
  const auto mine = x.contiguous();
  auto all = at::empty({communicator.world_size() * mine.numel()}, mine.options());
  communicator.all_gather(all, mine.view(-1), "tensor parallel");
  std::vector<at::Tensor> parts;
  parts.reserve(static_cast<std::size_t>(communicator.world_size()));
  for (int r = 0; r < communicator.world_size(); ++r)
    parts.push_back(all.narrow(0, r * mine.numel(), mine.numel()).view(mine.sizes()));
  return at::cat(parts, dim);
}

at::Tensor own_part(const at::Tensor& x, std::int64_t dim, const Communicator& communicator) {
  const auto each = x.size(dim) / communicator.world_size();
  return x.narrow(dim, communicator.rank() * each, each).contiguous();
}

at::Tensor reduced_part(const at::Tensor& x, std::int64_t dim, Communicator& communicator) {
  std::vector<at::Tensor> flat;
  for (const auto& part : x.chunk(communicator.world_size(), dim)) flat.push_back(part.reshape(-1));
  auto shape = x.sizes().vec();
  shape[static_cast<std::size_t>(dim)] /= communicator.world_size();
  auto mine = at::empty(shape, x.options());
  communicator.reduce_scatter(mine.view(-1), at::cat(flat), ReduceOp::sum, "tensor parallel");
  return mine;
}

constexpr std::int64_t kTokens = 1;  // the dimension

enum class Move : std::int64_t { copy, sum, gather_last, gather_tokens, sum_tokens, split_tokens };

at::Tensor forward_of(Move move, const at::Tensor& x, Communicator& communicator) {
  switch (move) {
    case Move::copy: return x.view_as(x);
    case Move::sum: return reduced(x, communicator);
    case Move::gather_last: return gathered(x, -1, communicator);
    case Move::gather_tokens: return gathered(x, kTokens, communicator);
    case Move::sum_tokens: return reduced_part(x, kTokens, communicator);
    case Move::split_tokens: return own_part(x, kTokens, communicator);
  }
  return x;
}

at::Tensor backward_of(Move move, const at::Tensor& gradient, Communicator& communicator) {
  switch (move) {
    case Move::copy: return reduced(gradient, communicator);
    case Move::sum: return gradient;
    case Move::gather_last: return own_part(gradient, gradient.dim() - 1, communicator);
    case Move::gather_tokens: return reduced_part(gradient, kTokens, communicator);
    case Move::sum_tokens:
    case Move::split_tokens: return gathered(gradient, kTokens, communicator);
  }
  return gradient;
}

struct CommunicatorHolder : torch::CustomClassHolder {
  explicit CommunicatorHolder(std::shared_ptr<Communicator> l) : communicator(std::move(l)) {}
  std::shared_ptr<Communicator> communicator;
};

struct Moved : torch::autograd::Function<Moved> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::int64_t move,
                            const std::shared_ptr<Communicator>& communicator) {
    context->saved_data["move"] = move;
    context->saved_data["communicator"] =
        c10::IValue::make_capsule(c10::make_intrusive<CommunicatorHolder>(communicator));
    return forward_of(static_cast<Move>(move), x, *communicator);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto& communicator =
        *static_cast<CommunicatorHolder*>(context->saved_data["communicator"].toCapsule().get())->communicator;
    return {backward_of(static_cast<Move>(context->saved_data["move"].toInt()), gradients[0], communicator),
            at::Tensor(), at::Tensor()};
  }
};

at::Tensor moved(Move move, const at::Tensor& x, const TensorParallel& group) {
  if (group.ranks() == 1) return x;
  return Moved::apply(x, static_cast<std::int64_t>(move), group.communicator);
}

void check_tokens(const at::Tensor& x, const TensorParallel& group) {
  if (x.dim() > kTokens && x.size(kTokens) % group.ranks() == 0) return;
  throw Error(
      ErrorCode::usage, "sequence_parallel",
      (x.dim() > kTokens ? std::to_string(x.size(kTokens)) + " tokens" : std::string("a tensor without tokens")) +
          " can't be divided among " + std::to_string(group.ranks()) + " ranks",
      "make the sequence a multiple of tp, or leave sequence_parallel off");
}

}  // namespace

at::Tensor copy_to_ranks(const at::Tensor& x, const TensorParallel& group) { return moved(Move::copy, x, group); }
at::Tensor sum_over_ranks(const at::Tensor& x, const TensorParallel& group) { return moved(Move::sum, x, group); }
at::Tensor gather_last(const at::Tensor& x, const TensorParallel& group) { return moved(Move::gather_last, x, group); }
at::Tensor gather_tokens(const at::Tensor& x, const TensorParallel& group) {
  return moved(Move::gather_tokens, x, group);
}

at::Tensor sum_and_split_tokens(const at::Tensor& x, const TensorParallel& group) {
  check_tokens(x, group);
  return moved(Move::sum_tokens, x, group);
}

at::Tensor split_tokens(const at::Tensor& x, const TensorParallel& group) {
  check_tokens(x, group);
  return moved(Move::split_tokens, x, group);
}

}  // namespace troupe
