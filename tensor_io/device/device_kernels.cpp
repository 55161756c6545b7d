#include "tensor_io/device/device_kernels.hpp"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <vector>

#include "tensor_io/base/error.hpp"
#include "tensor_io/device/accelerator.hpp"
#include "tensor_io/device/device_graph.hpp"
#include "tensor_io/device/hash_words.hpp"

namespace troupe {
namespace {

[[noreturn]] void refuse(const char* kernel, const std::string& cause) {
  throw Error(ErrorCode::internal, kernel, cause);
}

bool is_known(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16; }

Accelerator& of_device(const char* kernel, const at::Tensor& tensor) {
  auto* cuda = accelerator();
  if (cuda == nullptr) refuse(kernel, "a tensor on " + tensor.device().str() + " in a build without it");
  return *cuda;
}

template <class Work>
void with_type(const char* kernel, at::ScalarType dtype, Work&& work) {
  switch (dtype) {
    case at::kFloat: return work(float{});
    case at::kHalf: return work(c10::Half{});
    case at::kBFloat16: return work(c10::BFloat16{});
    default: refuse(kernel, std::string("a tensor of ") + c10::toString(dtype));
  }
}

}  // namespace

void pack(const at::Tensor& bucket, std::span<const at::Tensor> sources, std::span<const std::int64_t> offsets,
          double scale) {
  if (sources.size() != offsets.size()) refuse("pack", "sources and offsets differ in number");
  if (sources.empty()) return;  // also into a bucket of f64, whose gradients take a copy each
  if (!bucket.is_contiguous() || !is_known(bucket.scalar_type()))
    refuse("pack", std::string("a bucket of ") + c10::toString(bucket.scalar_type()));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto& source = sources[i];
    if (source.device() != bucket.device() || source.scalar_type() != sources[0].scalar_type() ||
        !is_known(source.scalar_type()) || !source.is_contiguous() || offsets[i] < 0 ||
        offsets[i] + source.numel() > bucket.numel()) {
      refuse("pack", "source " + std::to_string(i) + " does not fit the bucket");
    }
  }
  if (bucket.is_cuda()) return of_device("pack", bucket).pack(bucket, sources, offsets, scale);
  const auto loop = [bucket, scale, sources = std::vector(sources.begin(), sources.end()),
                     offsets = std::vector(offsets.begin(), offsets.end())] {
    with_type("pack", bucket.scalar_type(), [&]<class To>(To) {
      with_type("pack", sources[0].scalar_type(), [&]<class From>(From) {
        for (std::size_t i = 0; i < sources.size(); ++i) {
          const auto* from = sources[i].const_data_ptr<From>();
          auto* to = bucket.data_ptr<To>() + offsets[i];
          for (std::int64_t k = 0; k < sources[i].numel(); ++k)
            to[k] = static_cast<To>(static_cast<float>(from[k]) * static_cast<float>(scale));
        }
      });
    });
  };
  auto* const graph = graph_under_way(bucket.device());
  graph == nullptr ? loop() : graph->run_on_host(loop);
}

void scale_and_check(const at::Tensor& flat, double scale, const at::Tensor& result) {
  if (!flat.is_contiguous() || !(is_known(flat.scalar_type()) || flat.scalar_type() == at::kDouble))
    refuse("scale_and_check", std::string("a tensor of ") + c10::toString(flat.scalar_type()));
  if (result.scalar_type() != at::kDouble || result.numel() != 2 || result.device() != flat.device())
    refuse("scale_and_check", "the result is no (2,) f64 there");
  if (flat.scalar_type() == at::kDouble) {  // the kernel has none
    if (scale != 1) flat.mul_(scale);
    result.select(0, 0).copy_(flat.square().sum());
    result.select(0, 1).copy_(flat.isfinite().logical_not().sum());
    return;
  }
  if (flat.is_cuda()) return of_device("scale_and_check", flat).scale_and_check(flat, scale, result);
  with_type("scale_and_check", flat.scalar_type(), [&]<class T>(T) {
    auto* data = flat.data_ptr<T>();
    double squares = 0, not_finite = 0;
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      if (scale != 1) data[i] = static_cast<T>(static_cast<float>(data[i]) * static_cast<float>(scale));
      const auto value = static_cast<double>(static_cast<float>(data[i]));
      squares += value * value;
      if (!std::isfinite(value)) ++not_finite;
    }
    result.data_ptr<double>()[0] = squares;
    result.data_ptr<double>()[1] = not_finite;
  });
}

at::Tensor check_each(const std::vector<at::Tensor>& tensors, c10::Device device) {
  const c10::AutoGradMode no_grad(false);
  const auto rows = static_cast<std::int64_t>(tensors.size());
  auto checks = at::zeros({rows, 2}, at::TensorOptions().device(device).dtype(at::kDouble));
  for (std::int64_t i = 0; i < rows; ++i)
    scale_and_check(tensors[static_cast<std::size_t>(i)].view(-1), 1, checks.select(0, i));
  return checks;
}

void hash_bytes(const at::Tensor& tensor, const at::Tensor& result) {
  if (!tensor.is_contiguous()) refuse("hash_bytes", "a tensor that is not contiguous");
  if (result.scalar_type() != at::kLong || result.numel() != 1 || result.device() != tensor.device())
    refuse("hash_bytes", "the result is no () i64 there");
  if (tensor.is_cuda()) return of_device("hash_bytes", tensor).hash_bytes(tensor, result);
  const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
  const auto count = static_cast<std::int64_t>(tensor.nbytes());
  std::uint64_t sum = 0;
  for (std::int64_t word = 0; 4 * word < count; ++word)
    sum += cuda::hash_of_word(cuda::word_at(bytes, count, word), word);
  *result.data_ptr<std::int64_t>() = static_cast<std::int64_t>(sum);
}

}  // namespace troupe
