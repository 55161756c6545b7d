#include "tensor_io/communicator/conformance/conformance_values.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace troupe::conformance {

// Small whole numbers: every reduction of eight of them is exact in every type, whatever the order.
static std::int64_t value_of(int rank, std::int64_t i, at::ScalarType dtype, ReduceOp op) {
  const std::int64_t mixed = (rank * 5 + i * 3 + (i >> 8) * 7) % 11;
  if (dtype == at::kBool) return mixed % 3 == 0;
  if (op == ReduceOp::product) return 1 + mixed % 2;
  return dtype == at::kByte ? mixed : mixed - 5;
}

at::Tensor input_of(int rank, std::int64_t numel, at::ScalarType dtype, ReduceOp op, std::int64_t first) {
  const auto values = at::empty({numel}, at::kLong);
  auto* data = values.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < numel; ++i) data[i] = value_of(rank, first + i, dtype, op);
  return values.to(dtype);
}

at::Tensor reduced(int world_size, std::int64_t numel, at::ScalarType dtype, ReduceOp op, std::int64_t first) {
  std::vector<std::int64_t> values(numel);
  for (std::int64_t i = 0; i < numel; ++i) {
    std::int64_t total = value_of(0, first + i, dtype, op);
    for (int r = 1; r < world_size; ++r) {
      const auto next = value_of(r, first + i, dtype, op);
      switch (op) {
        case ReduceOp::min: total = std::min(total, next); break;
        case ReduceOp::max: total = std::max(total, next); break;
        case ReduceOp::product: total *= next; break;
        default: total += next;
      }
    }
    values[i] = total;
  }
  auto whole = at::from_blob(values.data(), {numel}, at::kLong).clone();
  if (op != ReduceOp::avg) return whole.to(dtype);
  // Divided in the type that the sum is kept in, rounded once.
  if (dtype == at::kDouble) return whole.to(at::kDouble) / world_size;
  return (whole.to(at::kFloat) / world_size).to(dtype);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

bool sums_by_host(const ConformanceRun& run) { return run.options.sums_by_host && run.world_size > 1; }

bool is_reduced(const ConformanceRun& run, const at::Tensor& found, const at::Tensor& expected, ReduceOp op) {
  if (sums_by_host(run) && op == ReduceOp::avg && found.element_size() == 2)
    return found.scalar_type() == expected.scalar_type() &&
           at::allclose(found.to(at::kFloat), expected.to(at::kFloat), 1e-2, 1e-2);
  return same_bits(found, expected);
}

std::string case_name(at::ScalarType dtype, std::int64_t numel, std::string_view what) {
  return std::string(what) + " of " + std::to_string(numel) + " " + c10::toString(dtype);
}

at::Tensor placed(const at::Tensor& values, const at::Tensor& windows) {
  if (!windows.defined()) return values.clone();
  auto place = windows.narrow(0, 0, static_cast<std::int64_t>(values.nbytes())).view(values.scalar_type());
  place.copy_(values);
  return place;
}

at::Tensor windows_for(const ConformanceRun& run, Communicator& communicator, std::int64_t bytes) {
  return run.options.in_allocated_memory ? communicator.allocate(bytes, at::kByte) : at::Tensor();
}

}  // namespace troupe::conformance
