#include "bench/bottleneck_resnet.hpp"

namespace {

constexpr std::int64_t kExpansion = 4;

torch::nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct BottleneckImpl : torch::nn::Module {
  BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t stride)
      : first(register_module("first", conv(in, width, 1, 1))),
        first_norm(register_module("first_norm", troupe::nn::BatchNorm2d(width))),
        second(register_module("second", conv(width, width, 3, stride))),
        second_norm(register_module("second_norm", troupe::nn::BatchNorm2d(width))),
        third(register_module("third", conv(width, kExpansion * width, 1, 1))),
        third_norm(register_module("third_norm", troupe::nn::BatchNorm2d(kExpansion * width))) {
    if (stride != 1 || in != kExpansion * width) {
      shortcut = register_module("shortcut", conv(in, kExpansion * width, 1, stride));
      shortcut_norm = register_module("shortcut_norm", troupe::nn::BatchNorm2d(kExpansion * width));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = torch::relu(first_norm(first(x)));
    y = torch::relu(second_norm(second(y)));
    y = third_norm(third(y));
    return torch::relu(y + (shortcut ? shortcut_norm(shortcut(x)) : x));
  }
  torch::nn::Conv2d first;
  troupe::nn::BatchNorm2d first_norm;
  torch::nn::Conv2d second;
  troupe::nn::BatchNorm2d second_norm;
  torch::nn::Conv2d third;
  troupe::nn::BatchNorm2d third_norm;
  torch::nn::Conv2d shortcut{nullptr};
  troupe::nn::BatchNorm2d shortcut_norm{nullptr};
};
TROUPE_BLOCK(Bottleneck);

}  // namespace

BottleneckResNetImpl::BottleneckResNetImpl(const Depths& depths, std::int64_t width, std::int64_t num_classes)
    : stem_(register_module("stem", conv(3, width, 7, 2))),
      stem_norm_(register_module("stem_norm", troupe::nn::BatchNorm2d(width))),
      head_(register_module("head", torch::nn::Linear(8 * kExpansion * width, num_classes))) {
  std::int64_t before = width, within = width;
  for (std::size_t stage = 0; stage < depths.size(); ++stage, within *= 2) {
    for (int block = 0; block < depths[stage]; ++block) {
      blocks_->push_back(Bottleneck(before, within, stage > 0 && block == 0 ? 2 : 1));
      before = kExpansion * within;
    }
  }
  register_module("blocks", blocks_);
}

at::Tensor BottleneckResNetImpl::forward(const at::Tensor& images) {
  auto x = torch::max_pool2d(torch::relu(stem_norm_(stem_(images))), 3, 2, 1);
  return head_(blocks_->forward(x).mean({2, 3}));
}
