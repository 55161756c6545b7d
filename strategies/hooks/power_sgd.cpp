#include "strategies/hooks/power_sgd.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "strategies/hooks/device_power_sgd.hpp"
#include "strategies/hooks/power_sgd_kernels.hpp"
#include "strategies/replicated/model_sync.hpp"
#include "tensor_io/kernels/pack.hpp"

namespace troupe {
namespace {

std::uint64_t seed_of(const std::string& name) {  // FNV-1a
  std::uint64_t hash = 1469598103934665603ull;
  for (const unsigned char c : name) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

// Offsets within one buffer, each at 64 bytes.
std::int64_t padded(std::int64_t numel) { return (numel + 15) / 16 * 16; }

// The values of a dense tensor in the order of memory: what the strides are does not matter as long as every rank does
// the same.
at::Tensor in_memory_order(const at::Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  return tensor.as_strided({rows, columns}, {columns, 1});
}

// Whether this rank's gradient has anything in it, as a number to be averaged.
void note_use(const at::Tensor& gradient, const at::Tensor& used) {
  if (!gradient.is_cpu()) {
    used.copy_(gradient.ne(0).any());
    return;
  }
  const auto* values = gradient.const_data_ptr<float>();
  *used.data_ptr<float>() = std::any_of(values, values + gradient.numel(), [](float x) { return x != 0; }) ? 1 : 0;
}

}  // namespace

PowerSgd::PowerSgd(std::int64_t rank, std::int64_t start_step) : rank_(rank), start_step_(start_step) {
  if (rank < 1) throw Error(ErrorCode::usage, "powersgd_rank", "it is " + std::to_string(rank), "it must be 1 or more");
}

std::int64_t PowerSgd::rank_for(const at::Tensor& gradient) const {
  if (gradient.dim() < 2 || gradient.numel() == 0) return 0;
  const auto rows = gradient.size(0), columns = gradient.numel() / rows;
  const auto rank = std::min({rank_, rows, columns});
  return (rows + columns) * rank < rows * columns ? rank : 0;
}

PowerSgd::History& PowerSgd::history_of(const std::string& name, std::int64_t rows, std::int64_t columns,
                                        std::int64_t rank, c10::Device device) {
  auto& history = histories_[name];
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const auto fit = [&](at::Tensor& tensor, std::int64_t first, std::int64_t second) {
    if (!tensor.defined() || tensor.size(0) != first || tensor.size(1) != second) {
      tensor = at::zeros({first, second}, options);
    } else {
      tensor = tensor.to(device);  // itself, unless it was loaded
    }
  };
  for (auto& pair : history.pairs) {
    fit(pair.q, rank, columns);
    fit(pair.error, rows, columns);
  }
  if (!device.is_cpu() && (!history.start.defined() || history.start.sizes() != history.pairs[0].q.sizes()))
    history.start = start_rows(rank, columns, seed_of(name), device);
  return history;
}

at::Tensor PowerSgd::scratch(at::Tensor& memory, std::int64_t numel, c10::Device device) {
  if (!memory.defined() || memory.numel() < numel)
    memory = at::zeros({numel}, at::TensorOptions().dtype(at::kFloat).device(device));
  return memory.narrow(0, 0, numel);
}

PowerSgd::Parcel PowerSgd::compress(const BucketView& bucket) {
  const bool is_f32 = bucket.flat.scalar_type() == at::kFloat;
  const auto device = bucket.flat.device();
  std::int64_t numel_p = 0, numel_q = 0;
  for (const auto& gradient : bucket.gradients) {
    const auto rank = rank_for(gradient);
    numel_p += padded(rank > 0 ? gradient.size(0) * rank + 1 : gradient.numel());
    if (rank > 0) numel_q += padded(rank * (gradient.numel() / gradient.size(0)));
  }
  Parcel parcel;
  parcel.p = scratch(send_p_, numel_p, device);
  parcel.q = scratch(send_q_, numel_q, device);
  if (!device.is_cpu())
    parcel.p.zero_();  // the gaps between its parts travel too, and what was there may not have been finite

  std::int64_t begin_p = 0, begin_q = 0;
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    const auto& gradient = bucket.gradients[i];
    const auto rank = rank_for(gradient);
    if (rank == 0) {
      const auto values = in_memory_order(gradient, 1, gradient.numel()).view(-1);
      parcel.whole.emplace_back(values, parcel.p.narrow(0, begin_p, gradient.numel()));
      parcel.whole.back().second.copy_(values);
      begin_p += padded(gradient.numel());
      continue;
    }
    const auto rows = gradient.size(0), columns = gradient.numel() / rows;
    auto& history = history_of(bucket.names[i], rows, columns, rank, device);
    const auto& factors = history.pairs[history.current];
    if (device.is_cpu()) {
      fill_zero_rows(factors.q.data_ptr<float>(), rank, columns, seed_of(bucket.names[i]));
    } else {
      fill_zero_rows(factors.q, history.start);
    }
    const auto values = in_memory_order(gradient, rows, columns);
    Matrix matrix{&history,
                  values,
                  is_f32 ? values : values.to(at::kFloat),
                  parcel.p.narrow(0, begin_p, rows * rank).view({rows, rank}),
                  parcel.q.narrow(0, begin_q, rank * columns).view({rank, columns}),
                  parcel.p.select(0, begin_p + rows * rank)};
    note_use(matrix.gradient, matrix.used);
    matrix.gradient.add_(factors.error);
    at::mm_out(matrix.p, matrix.gradient, factors.q.t());
    parcel.matrices.push_back(std::move(matrix));
    begin_p += padded(rows * rank + 1);
    begin_q += padded(rank * columns);
  }
  return parcel;
}

void PowerSgd::reduce(BucketView& bucket, Communicator& communicator) {
  at::NoGradGuard no_grad;
  if (bucket.step < start_step_) {
    communicator.all_reduce(bucket.flat, ReduceOp::avg, bucket.label);
    return;
  }
  auto parcel = compress(bucket);
  communicator.all_reduce(parcel.p, ReduceOp::avg, bucket.label);
  bucket.flat.is_cpu() ? finish(bucket, parcel, communicator) : finish_on_device(bucket, parcel, communicator);
}

void PowerSgd::finish(const BucketView& bucket, Parcel& parcel, Communicator& communicator) {
  const bool is_f32 = bucket.flat.scalar_type() == at::kFloat;
  if (!all_finite(parcel.p)) {
    // Same bits on all ranks, so all come here. The step will be skipped or the job stopped: the error feedback must
    // not learn from it.
    for (auto& matrix : parcel.matrices) {
      if (!is_f32) matrix.values.copy_(matrix.gradient);
    }
    send_p_.zero_();  // the gaps between its parts travel too
    communicator.all_reduce(bucket.flat, ReduceOp::avg, bucket.label);
    return;
  }
  for (auto& [gradient, place] : parcel.whole) gradient.copy_(place);
  if (parcel.matrices.empty()) return;
  const auto is_used = [](const Matrix& matrix) { return *matrix.used.const_data_ptr<float>() > 0; };
  for (auto& matrix : parcel.matrices) {
    if (!is_used(matrix)) {
      matrix.values.zero_();
      matrix.q.zero_();
      continue;
    }
    orthonormalise_columns(matrix.p.data_ptr<float>(), matrix.p.size(0), matrix.p.size(1));
    at::mm_out(matrix.q, matrix.p.t(), matrix.gradient);
  }
  communicator.all_reduce(parcel.q, ReduceOp::avg, bucket.label);
  for (auto& matrix : parcel.matrices) {
    if (!is_used(matrix)) continue;
    auto& history = *matrix.history;
    history.current = 1 - history.current;
    history.step = bucket.step;
    const auto& next = history.pairs[history.current];
    next.q.copy_(matrix.q);
    decompress(matrix.gradient.data_ptr<float>(), next.error.data_ptr<float>(), matrix.p.data_ptr<float>(),
               matrix.q.data_ptr<float>(), matrix.gradient.size(0), matrix.gradient.size(1), matrix.p.size(1));
    if (!is_f32) matrix.values.copy_(matrix.gradient);
  }
}

// As finish, with the same collectives whether all is finite or not: what is not stays so in the gradients, and the
// pair that the next step reads is the one that this one began with.
void PowerSgd::finish_on_device(const BucketView& bucket, Parcel& parcel, Communicator& communicator) {
  const bool is_f32 = bucket.flat.scalar_type() == at::kFloat;
  const auto finite = at::isfinite(parcel.p).all();
  for (auto& [gradient, place] : parcel.whole) gradient.copy_(place);
  if (parcel.matrices.empty()) return;
  std::vector<at::Tensor> left;
  for (const auto& matrix : parcel.matrices) left.push_back(matrix.p);
  orthonormalise_columns(left);
  for (auto& matrix : parcel.matrices) at::mm_out(matrix.q, matrix.p.t(), matrix.gradient);
  communicator.all_reduce(parcel.q, ReduceOp::avg, bucket.label);
  for (auto& matrix : parcel.matrices) {
    auto& history = *matrix.history;
    const auto& before = history.pairs[history.current];
    history.current = 1 - history.current;
    history.step = bucket.step;
    auto next = history.pairs[history.current];
    const auto approximation = matrix.p.mm(matrix.q);
    const auto used = matrix.used.gt(0), learns = finite.logical_and(used);
    at::where_out(next.q, learns, matrix.q, before.q);
    at::where_out(next.error, learns, matrix.gradient.sub(approximation), before.error);
    matrix.gradient.copy_(at::where(used, approximation, at::zeros_like(approximation)));
    if (!is_f32) matrix.values.copy_(matrix.gradient);
  }
}

NamedTensors PowerSgd::state() {
  NamedTensors state;
  for (const auto& [name, history] : histories_) {
    const auto& factors = history.pairs[history.current];
    state.emplace_back(name + ".error", factors.error);
    state.emplace_back(name + ".q", factors.q);
  }
  return state;
}

void PowerSgd::roll_back(std::int64_t step) {
  for (auto& [name, history] : histories_) {
    if (history.step != step) continue;
    history.current = 1 - history.current;
    history.step = -1;
  }
}

void PowerSgd::hand_over(Communicator& communicator) {
  NamedTensors errors;
  for (auto& [name, history] : histories_) errors.emplace_back(name, history.pairs[history.current].error);
  const auto means = means_over_ranks(errors, communicator, "PowerSGD's errors");  // a rank may be lost meanwhile
  for (std::size_t i = 0; i < errors.size(); ++i) errors[i].second.copy_(means[i].second);
}

void PowerSgd::load_state(const NamedTensors& loaded) {
  std::map<std::string, History> fresh;
  for (const auto& [name, value] : loaded) {
    const auto dot = name.rfind('.');
    const auto field = dot == std::string::npos ? std::string() : name.substr(dot + 1);
    if ((field != "error" && field != "q") || value.dim() != 2) {
      throw Error(ErrorCode::mismatch, "powersgd state", name + " is not part of it",
                  "resume with the communication hook that wrote the checkpoint");
    }
    auto& factors = fresh[name.substr(0, dot)].pairs[0];
    (field == "q" ? factors.q : factors.error) = value.to(at::kFloat).contiguous().clone();
  }
  histories_ = std::move(fresh);
}

}  // namespace troupe
