#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/kernels/reduce_kernels.hpp"

// Checks of the arguments of a communicator's calls. Each throws Error(usage) before a peer is touched.
namespace troupe {

/// `which` names the argument: "input", "output", "tensor". It lies on the CPU or on `device`.
void check_tensor(std::string_view operation, std::string_view which, const at::Tensor& tensor, at::Device device);
/// Output and input have one dtype, and the longer has `times` times the elements of the shorter. They lie apart, or
/// the shorter is exactly slice `own` of the longer. `own` is -1 if no overlap is allowed.
void check_pair(std::string_view operation, const at::Tensor& longer, std::string_view longer_name,
                const at::Tensor& shorter, std::string_view shorter_name, int times, int own);
void check_rank(std::string_view operation, std::string_view which, int rank, int world_size);
/// Tensors of one length, f32, apart, at 64 bytes and of a multiple of 64; runs lie within them, and moments are there
/// if the rules have them.
void check_update(std::string_view operation, const at::Tensor& gradients, const ReducedUpdate& update);
void check_reduction(std::string_view operation, ReduceOp op, at::ScalarType dtype);
void check_options(const CommunicatorOptions& options);

/// For checked arguments.
Element element_of(at::ScalarType dtype);
/// inputs[*] -> outputs[*], `bytes` each; of avg, the divisor is `world_size`.
void reduce_all(at::ScalarType dtype, ReduceOp op, int world_size, std::span<const void* const> inputs,
                std::span<void* const> outputs, std::int64_t bytes);

}  // namespace troupe
