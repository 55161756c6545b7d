#pragma once
#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace troupe {

/// Gradients into their bucket, one launch for 64 of them: bucket[offsets[i] ...] = scale * sources[i], in the bucket's
/// dtype. Sources are contiguous, of one dtype (f32, f16, bf16) and of the bucket's device; bucket (numel,) f32, f16 or
/// bf16. Multiplied in f32, rounded once. Does not wait for the device. Without a GPU it is a plain loop of the host,
/// with the same bits.
void pack(const at::Tensor& bucket, std::span<const at::Tensor> sources, std::span<const std::int64_t> offsets,
          double scale = 1);

/// One pass over `flat` (numel,), f32, f16 or bf16 (f64: several). It multiplies by `scale` in place (not at all if
/// that is 1). `result` (2,) f64 on the same device gets the sum of the squares after that, and the number of elements
/// that are not finite. Does not wait for the device: read `result` after a wait. The same bits each time on one
/// device; on the CPU added in another order.
void scale_and_check(const at::Tensor& flat, double scale, const at::Tensor& result);
/// (tensors, 2) f64 on `device`, where contiguous `tensors` are: what scale_and_check, without a scale, says of each.
at::Tensor check_each(const std::vector<at::Tensor>& tensors, c10::Device device);

/// A hash of the bytes of `tensor` (contiguous, any dtype) into `result` () i64 on the same device: the sum, modulo
/// 2^64, of SplitMix64's finalizer (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) of each
/// 4 bytes and their place. The same number on a GPU and on the CPU. Does not wait for the device.
void hash_bytes(const at::Tensor& tensor, const at::Tensor& result);

}  // namespace troupe
