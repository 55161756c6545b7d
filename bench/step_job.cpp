#include "bench/step_job.hpp"

#include <cstdint>
#include <cstdio>
#include <fstream>

#include "actors/block/block.hpp"
#include "bench/bottleneck_resnet.hpp"
#include "examples/gpt/gpt.hpp"
#include "examples/image_classifier/mini_resnet.hpp"

namespace step_job {

namespace {

constexpr std::int64_t kWidth = 1024;

std::uint32_t hash(std::uint32_t stream, std::int64_t i) {
  auto h = static_cast<std::uint32_t>(i) + stream * 0x9E3779B1u;
  h ^= h >> 16;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  h *= 0xC2B2AE35u;
  return h ^ (h >> 16);
}

// Value i of a stream in [-scale, scale): the same bits in every language.
at::Tensor values(std::uint32_t stream, at::IntArrayRef shape, float scale) {
  auto tensor = torch::empty(shape);
  auto* data = tensor.data_ptr<float>();
  const float factor = scale / static_cast<float>(1 << 23);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    data[i] = static_cast<float>(static_cast<std::int32_t>(hash(stream, i) >> 8) - (1 << 23)) * factor;
  }
  return tensor;
}

// Value i of a stream in [0, end).
at::Tensor integers(std::uint32_t stream, at::IntArrayRef shape, std::int64_t end) {
  auto tensor = torch::empty(shape, torch::kLong);
  auto* data = tensor.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) data[i] = (hash(stream, i) >> 8) % end;
  return tensor;
}

std::uint32_t input_stream(int rank, std::size_t batch) {
  return static_cast<std::uint32_t>(1000 + 100 * rank) + static_cast<std::uint32_t>(batch);
}
std::uint32_t target_stream(int rank, std::size_t batch) { return input_stream(rank, batch) + 1000; }

template <class Make>
std::vector<at::Tensor> for_each_batch(Make make) {
  std::vector<at::Tensor> batches;
  for (std::size_t k = 0; k < kBatches; ++k) batches.push_back(make(k));
  return batches;
}

at::Tensor at_least_f32(const at::Tensor& scores) {
  return scores.to(c10::promoteTypes(scores.scalar_type(), at::kFloat));
}

// A norm's weight is 1 and its bias 0.
void set_values(torch::nn::Module& model, bool biases) {
  torch::NoGradGuard no_grad;
  std::uint32_t stream = 0;
  for (auto& item : model.named_parameters()) {
    auto& parameter = item.value();
    if (biases || parameter.dim() > 1) {
      parameter.copy_(values(stream, parameter.sizes(), 1.0F / 32));
    } else {
      parameter.fill_(item.key().ends_with("weight") ? 1 : 0);
    }
    ++stream;
  }
}

Job mlp(int rank, std::int64_t batch, int layers) {
  torch::nn::Sequential model;
  for (int layer = 0; layer < layers; ++layer) {
    model->push_back(std::make_shared<troupe::Block<torch::nn::LinearImpl>>(kWidth, kWidth));
    if (layer + 1 < layers) model->push_back(torch::nn::ReLU());
  }
  if (layers == 0) model->push_back(torch::nn::Linear(1, 1));  // what a program takes without a model
  set_values(*model, true);
  const std::int64_t width = layers == 0 ? 1 : kWidth;
  return {model.ptr(), for_each_batch([&](std::size_t k) {
            return values(input_stream(rank, k), {batch, width}, 1);
          }),
          for_each_batch([&](std::size_t k) {
            return values(target_stream(rank, k), {batch, width}, 1);
          }),
          [](torch::nn::Module& m, at::Tensor input, const at::Tensor& target) {
            return torch::mse_loss(m.as<torch::nn::SequentialImpl>()->forward(input), target);
          }};
}

struct GptShape {
  std::int64_t layers, heads, width, tokens, vocabulary;
};

Job gpt(int rank, std::int64_t batch, const GptShape& shape) {
  GptOptions options;
  options.block_size = shape.tokens;
  options.n_layer = shape.layers;
  options.n_head = shape.heads;
  options.n_embd = shape.width;
  options.vocab_size = shape.vocabulary;
  Gpt model(options);
  set_values(*model, false);
  const auto tokens = [&](std::uint32_t stream) {
    return integers(stream, {batch, options.block_size}, options.vocab_size);
  };
  return {model.ptr(), for_each_batch([&](std::size_t k) { return tokens(input_stream(rank, k)); }),
          for_each_batch([&](std::size_t k) { return tokens(target_stream(rank, k)); }),
          [](torch::nn::Module& m, const at::Tensor& input, const at::Tensor& target) {
            const auto scores = m.as<GptImpl>()->forward(input).flatten(0, 1);
            return torch::nn::functional::cross_entropy(at_least_f32(scores), target.flatten());
          }};
}

// Any model that takes images (N, 3, side, side).
template <class Model>
Job images(Model model, int rank, std::int64_t batch, std::int64_t side, std::int64_t classes) {
  set_values(*model, false);
  return {model.ptr(), for_each_batch([&](std::size_t k) {
            return values(input_stream(rank, k), {batch, 3, side, side}, 1);
          }),
          for_each_batch([&](std::size_t k) { return integers(target_stream(rank, k), {batch}, classes); }),
          [](torch::nn::Module& m, const at::Tensor& input, const at::Tensor& target) {
            using Impl = std::remove_reference_t<decltype(*std::declval<Model>())>;
            return torch::nn::functional::cross_entropy(at_least_f32(m.as<Impl>()->forward(input)), target);
          }};
}

// As GPUs like pictures, on both sides.
Job bottlenecks(int rank, std::int64_t batch, const BottleneckResNetImpl::Depths& depths, std::int64_t width,
                std::int64_t side, std::int64_t classes) {
  return channels_last(images(BottleneckResNet(depths, width, classes), rank, batch, side, classes));
}

}  // namespace

Job make_job(const std::string& name, int rank, std::int64_t batch, int layers) {
  if (name == "mlp") return mlp(rank, batch, layers);
  if (name == "gpt") return gpt(rank, batch, {.layers = 6, .heads = 8, .width = 512, .tokens = 256, .vocabulary = 256});
  if (name == "gpt124m")
    return gpt(rank, batch, {.layers = 12, .heads = 12, .width = 768, .tokens = 1024, .vocabulary = 50304});
  if (name == "gpt_tiny")
    return gpt(rank, batch, {.layers = 2, .heads = 4, .width = 64, .tokens = 32, .vocabulary = 97});
  if (name == "resnet") return images(MiniResNet(3, 10), rank, batch, 32, 10);
  if (name == "resnet50") return bottlenecks(rank, batch, kResNet50, 64, 224, 1000);
  if (name == "resnet_tiny") return bottlenecks(rank, batch, {1, 1, 1, 1}, 8, 64, 10);
  throw no_such_job(name);
}

Job channels_last(Job job) {
  torch::NoGradGuard no_grad;
  for (auto& parameter : job.model->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  for (auto& input : job.inputs) input = input.contiguous(at::MemoryFormat::ChannelsLast);
  return job;
}

bool trains_with_sgd(const std::string& job) { return job.starts_with("resnet"); }

Job joined(const std::vector<Job>& ranks) {
  auto job = ranks.front();
  for (std::size_t k = 0; k < kBatches; ++k) {
    std::vector<at::Tensor> inputs, targets;
    for (const auto& rank : ranks) {
      inputs.push_back(rank.inputs[k]);
      targets.push_back(rank.targets[k]);
    }
    job.inputs[k] = torch::cat(inputs);
    job.targets[k] = torch::cat(targets);
  }
  return job;
}

std::invalid_argument no_such_job(const std::string& name) {
  std::string known;
  for (const auto job : kJobs) known += (known.empty() ? "" : ", ") + std::string(job);
  return std::invalid_argument("--job is one of " + known + ", not " + name);
}

void write_raw(const std::string& path, const std::vector<at::Tensor>& parameters) {
  std::ofstream file(path, std::ios::binary);
  for (const auto& parameter : parameters) {
    const auto whole = parameter.detach().contiguous();
    file.write(static_cast<const char*>(whole.data_ptr()), static_cast<std::streamsize>(whole.nbytes()));
  }
}

void print(const char* name, const std::vector<double>& numbers) {
  std::printf("%s", name);
  for (const double number : numbers) std::printf(" %.4f", number);
  std::printf("\n");
}

}  // namespace step_job
