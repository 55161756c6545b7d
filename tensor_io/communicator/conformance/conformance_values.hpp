#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/communicator/conformance/conformance_checks.hpp"

namespace troupe::conformance {

inline constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                            at::kInt,   at::kLong,   at::kByte, at::kBool};
inline constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};

/// (numel,) of `rank`: elements `first` and on of its endless row of small whole numbers. Every reduction over eight
/// ranks is exact in every type, in any order.
at::Tensor input_of(int rank, std::int64_t numel, at::ScalarType dtype, ReduceOp op = ReduceOp::sum,
                    std::int64_t first = 0);
/// The result over all ranks' inputs: element by element in 64-bit integers, then into the type.
at::Tensor reduced(int world_size, std::int64_t numel, at::ScalarType dtype, ReduceOp op, std::int64_t first = 0);

bool same_bits(const at::Tensor& a, const at::Tensor& b);
/// False for a group of one: it has nothing to add.
bool sums_by_host(const ConformanceRun& run);
/// To the bit; but a mean of 16-bit numbers is also rounded between hosts.
bool is_reduced(const ConformanceRun& run, const at::Tensor& found, const at::Tensor& expected, ReduceOp op);
/// "sum of 63 Float"
std::string case_name(at::ScalarType dtype, std::int64_t numel, std::string_view what);

/// `values` in the memory that this run wants: a copy, or in `windows`, which is memory from allocate() and the same
/// for each case.
at::Tensor placed(const at::Tensor& values, const at::Tensor& windows);
/// `bytes` from allocate(), or undefined. Collective.
at::Tensor windows_for(const ConformanceRun& run, Communicator& communicator, std::int64_t bytes);

}  // namespace troupe::conformance
