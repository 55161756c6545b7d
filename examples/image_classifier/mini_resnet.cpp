#include "mini_resnet.hpp"

namespace {

torch::nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : first(register_module("first", conv(in, out, 3, stride))),
        first_norm(register_module("first_norm", troupe::nn::BatchNorm2d(out))),
        second(register_module("second", conv(out, out, 3, 1))),
        second_norm(register_module("second_norm", troupe::nn::BatchNorm2d(out))) {
    if (stride != 1 || in != out) {
      shortcut = register_module("shortcut", conv(in, out, 1, stride));
      shortcut_norm = register_module("shortcut_norm", troupe::nn::BatchNorm2d(out));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = torch::relu(first_norm(first(x)));
    y = second_norm(second(y));
    return torch::relu(y + (shortcut ? shortcut_norm(shortcut(x)) : x));
  }
  torch::nn::Conv2d first;
  troupe::nn::BatchNorm2d first_norm;
  torch::nn::Conv2d second;
  troupe::nn::BatchNorm2d second_norm;
  torch::nn::Conv2d shortcut{nullptr};
  troupe::nn::BatchNorm2d shortcut_norm{nullptr};
};
TROUPE_BLOCK(BasicBlock);

}  // namespace

MiniResNetImpl::MiniResNetImpl(std::int64_t in_channels, std::int64_t num_classes, std::int64_t width)
    : stem_(register_module("stem", conv(in_channels, width, 3, 1))),
      stem_norm_(register_module("stem_norm", troupe::nn::BatchNorm2d(width))),
      blocks_(BasicBlock(width, width, 1), BasicBlock(width, width, 1), BasicBlock(width, 2 * width, 2),
              BasicBlock(2 * width, 2 * width, 1), BasicBlock(2 * width, 4 * width, 2),
              BasicBlock(4 * width, 4 * width, 1)),
      head_(register_module("head", torch::nn::Linear(4 * width, num_classes))) {
  register_module("blocks", blocks_);
  for (auto& module : modules(false)) {
    if (auto* convolution = module->as<torch::nn::Conv2d>())
      torch::nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
  }
}

at::Tensor MiniResNetImpl::forward(const at::Tensor& images) {
  auto x = torch::relu(stem_norm_(stem_(images)));
  x = blocks_->forward(x);
  return head_(x.mean({2, 3}));
}
