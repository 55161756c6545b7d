#pragma once
#include <troupe/troupe.hpp>

#include <array>

/// A residual network of bottlenecks (He et al., 2016), ResNet-50's shape with `kResNet50` and a width of 64: a 7x7
/// stem at half the size, pooling at half of that, four stages with once, twice, four and eight times `width` channels
/// within a bottleneck and four times as many between two, global average pooling, one linear layer. The stride is at
/// the 3x3 convolution, as in torchvision's.
class BottleneckResNetImpl : public torch::nn::Module {
 public:
  using Depths = std::array<int, 4>;  ///< bottlenecks of each stage
  BottleneckResNetImpl(const Depths& depths, std::int64_t width, std::int64_t num_classes);
  at::Tensor forward(const at::Tensor& images);  // (N, 3, H, W) -> (N, num_classes)

 private:
  torch::nn::Conv2d stem_;
  troupe::nn::BatchNorm2d stem_norm_;
  torch::nn::Sequential blocks_;
  torch::nn::Linear head_;
};
TORCH_MODULE(BottleneckResNet);

inline constexpr BottleneckResNetImpl::Depths kResNet50{3, 4, 6, 3};
