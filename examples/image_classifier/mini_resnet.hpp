#pragma once
#include <troupe/troupe.hpp>

/// A small residual network (He et al., 2016): a 3×3 stem, three stages of two blocks with `width` (64), twice and four
/// times as many channels, the later two at half the size each, global average pooling, one linear layer. For images
/// from 8×8 on.
class MiniResNetImpl : public torch::nn::Module {
 public:
  MiniResNetImpl(std::int64_t in_channels, std::int64_t num_classes, std::int64_t width = 64);
  at::Tensor forward(const at::Tensor& images);  // (N, C, H, W) -> (N, num_classes)

 private:
  torch::nn::Conv2d stem_;
  troupe::nn::BatchNorm2d stem_norm_;
  torch::nn::Sequential blocks_;
  torch::nn::Linear head_;
};
TORCH_MODULE(MiniResNet);
