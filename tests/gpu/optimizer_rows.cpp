// LibTorch's fused optimizers on a device: over one flat tensor beside a model's own tensors, and beside a copy of as
// many bytes. What they decide is in docs/gpu.md.
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include "bench/step_job.hpp"
#include "tests/gpu/rows.hpp"

namespace troupe::test {
namespace {

using Tensors = std::vector<at::Tensor>;

struct State {
  Tensors parameters, gradients, first, second, steps;

  explicit State(const std::vector<std::vector<std::int64_t>>& shapes) {
    const auto f32 = at::TensorOptions().dtype(at::kFloat).device(torch::kCUDA);
    for (const auto& shape : shapes) {
      parameters.push_back(torch::randn(shape, f32));
      gradients.push_back(torch::randn(shape, f32));
      first.push_back(torch::zeros(shape, f32));
      second.push_back(torch::zeros(shape, f32));
      steps.push_back(torch::ones({}, f32));
    }
  }
  void adamw() {
    at::_fused_adamw_(parameters, gradients, first, second, {}, steps, 1e-4, 0.9, 0.999, 0.01, 1e-8, false, false);
  }
  void sgd() { at::_fused_sgd_(parameters, gradients, first, 0, 0.9, 1e-4, 0, false, false, false); }
};

std::string bandwidth(double bytes, double seconds) { return text("%.0f GB/s", 1e-9 * bytes / seconds); }

// `moved`: how often a parameter's bytes cross the device's memory.
void rows_of(const char* name, int moved, std::int64_t numel, const std::function<void()>& flat,
             const std::function<void()>& tensors, std::size_t count) {
  const double bytes = 4.0 * static_cast<double>(numel) * moved;
  const auto beside = in_turns(20, flat, tensors);
  row(std::string(name) + " over one flat tensor of GPT-124M's size, beside its own " + std::to_string(count) +
          " tensors",
      text("%.3f ms", 1e3 * beside.ours), text("%.3f ms", 1e3 * beside.other), beside.ratio, "1.0");
  const auto half = static_cast<std::int64_t>(bytes / 2);  // a copy reads and writes
  const auto from = torch::zeros({half}, at::TensorOptions().dtype(at::kByte).device(torch::kCUDA)),
             to = torch::empty_like(from);
  const auto copied = in_turns(20, flat, [&] { to.copy_(from); });
  row(std::string(name) + " over it, beside a copy that moves as many bytes", bandwidth(bytes, copied.ours),
      bandwidth(bytes, copied.other), copied.ratio, "1.2");
}

}  // namespace

void optimizer_rows() {
  std::vector<std::vector<std::int64_t>> shapes;
  std::int64_t numel = 0;
  for (const auto& parameter : step_job::make_job("gpt124m", 0, 1, 0).model->parameters()) {
    shapes.push_back(parameter.sizes().vec());
    numel += parameter.numel();
  }
  const std::vector<std::vector<std::int64_t>> one_shape(1, {numel});
  State own(shapes), flat(one_shape);
  // Read: parameter, gradient and moments; written: all of these but the gradient.
  rows_of(
      "fused AdamW", 7, numel, [&] { flat.adamw(); }, [&] { own.adamw(); }, shapes.size());
  rows_of(
      "fused SGD with momentum", 5, numel, [&] { flat.sgd(); }, [&] { own.sgd(); }, shapes.size());
}

}  // namespace troupe::test
