#include "tensor_io/layers/deferred_init.hpp"

#include <torch/torch.h>

#include <sstream>
#include <thread>

#include "tensor_io/base/random_seed.hpp"
#include "tests/catch.hpp"
#include "tests/support/peak_memory.hpp"

using namespace troupe;
using Catch::Matchers::Contains;

namespace {

// Every kind of first value that LibTorch's modules give, and what programs do to them afterwards.
struct ZooImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(300, 200));
  torch::nn::Linear frozen = register_module("frozen", torch::nn::Linear(200, 200));
  torch::nn::Linear half = register_module("half", torch::nn::Linear(200, 200));
  torch::nn::Conv2d convolution = register_module("convolution", torch::nn::Conv2d(32, 64, 5));
  torch::nn::Embedding embedding =
      register_module("embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(500, 64).padding_idx(3)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(64, 500).bias(false)));
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({32'768})));
  torch::nn::BatchNorm1d statistics = register_module("statistics", torch::nn::BatchNorm1d(20'000));
  torch::nn::LSTM lstm = register_module("lstm", torch::nn::LSTM(128, 128));
  at::Tensor scaled = register_parameter("scaled", torch::empty({200, 200}).normal_(0, 2).mul_(0.5).add_(1));
  at::Tensor truncated =
      register_parameter("truncated", torch::empty({200, 200}).uniform_(-0.9, 0.9).erfinv_().mul_(2).clamp_(-1, 1));
  at::Tensor drawn = register_parameter("drawn", torch::randn({200, 200}));
  at::Tensor product = register_parameter("product", torch::rand({200, 200}) * 0.02);
  at::Tensor columns = register_parameter("columns", at::empty_strided({200, 200}, {1, 200}).normal_());
  at::Tensor own =
      register_parameter("own", torch::empty({200, 200}).uniform_(0, 1, at::detail::createCPUGenerator(77)));
  at::Tensor whole_numbers =
      register_parameter("whole_numbers", torch::empty({200, 200}, at::kLong).random_(9), /*requires_grad=*/false);
  at::Tensor orthogonal = register_parameter("orthogonal", torch::nn::init::orthogonal_(torch::empty({160, 160})));
  at::Tensor eye = register_parameter("eye", torch::eye(160));
  at::Tensor mask = register_buffer("mask", torch::ones({200, 200}).tril());
  at::Tensor table = register_buffer("table", torch::zeros({200, 200}));
  ZooImpl() {
    auto sines = table.accessor<float, 2>();
    for (int i = 0; i < 200; ++i) sines[i][i] = std::sin(static_cast<float>(i));
    head->weight = embedding->weight;  // tied, and a parameter under two names
    head->register_parameter("tied", embedding->weight);
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
    half->to(at::kDouble);
    torch::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      if (item.key() == "linear.weight") item.value().normal_(0, 0.02);
      if (item.key() == "convolution.weight") item.value().data().uniform_(-1, 1);
      if (item.key() == "embedding.weight") item.value().narrow(0, 7, 2).fill_(1.5);
      if (item.key() == "frozen.weight") item.value().view({-1}).slice(0, 0, 30'000).normal_();
      if (item.key() == "norm.weight") item.value().copy_(at::arange(32'768));
    }
  }
};
TORCH_MODULE(Zoo);

std::vector<std::pair<std::string, at::Tensor>> values_of(const Zoo& zoo) {
  std::vector<std::pair<std::string, at::Tensor>> values;
  for (const auto& item : zoo->named_parameters()) values.emplace_back(item.key(), item.value());
  for (const auto& item : zoo->named_buffers()) values.emplace_back(item.key(), item.value());
  return values;
}

at::Tensor drawn(std::uint64_t seed) {
  seed_generator(seed, {});
  return at::empty({200, 200}).normal_();
}

at::Tensor drawn_later(std::uint64_t seed) {
  auto tensor = deferred_init([&] { return drawn(seed); });
  REQUIRE(is_deferred(tensor));
  return tensor;
}

}  // namespace

TEST_CASE("[F08] a model that was built without memory gets the values that it would have had") {
  seed_generator(5, {});
  const Zoo now;
  const auto next_number = at::rand({1}).item<float>();
  seed_generator(5, {});
  const auto later = deferred_init([] { return Zoo(); });
  CHECK(at::rand({1}).item<float>() == next_number);
  for (const auto& weight :
       {later->linear->weight, later->frozen->weight, later->convolution->weight, later->embedding->weight,
        later->lstm->all_weights()[0], later->scaled, later->truncated, later->drawn, later->columns, later->own,
        later->whole_numbers, later->norm->bias, later->statistics->running_var}) {
    INFO(weight.sizes() << weight.scalar_type());
    CHECK(is_deferred(weight));
  }
  CHECK_FALSE(is_deferred(later->linear->bias));  // too small to matter
  for (const auto& read : {later->orthogonal, later->product, later->half->weight, later->norm->weight, later->table})
    CHECK_FALSE(is_deferred(read));
  CHECK(later->linear->weight.sizes() == at::IntArrayRef({200, 300}));
  CHECK(later->linear->weight.requires_grad());
  CHECK_FALSE(later->frozen->weight.requires_grad());
  seed_generator(6, {});  // whatever comes between
  const auto between = at::detail::getDefaultCPUGenerator().get_state();
  materialize(*later.ptr());
  CHECK((at::equal(at::detail::getDefaultCPUGenerator().get_state(), between)));
  const auto expected = values_of(now), seen = values_of(later);
  REQUIRE(expected.size() == seen.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(expected[i].first);
    CHECK(expected[i].first == seen[i].first);
    CHECK_FALSE(is_deferred(seen[i].second));
    CHECK((at::equal(expected[i].second, seen[i].second)));
    CHECK(expected[i].second.strides() == seen[i].second.strides());
    CHECK(expected[i].second.scalar_type() == seen[i].second.scalar_type());
    CHECK(expected[i].second.requires_grad() == seen[i].second.requires_grad());
  }
}

TEST_CASE("[F08] building takes the memory of one parameter, not of the model") {
  const testing::PeakMemory peak;
  const auto model = deferred_init([] {
    torch::nn::Sequential model;
    for (int i = 0; i < 64; ++i) model->push_back(torch::nn::Linear(torch::nn::LinearOptions(2048, 2048)));  // 1 GiB
    return model;
  });
  if (peak.mib() < 0) WARN("NOT RUN: this kernel does not reset the peak of a process's memory");
  CHECK(peak.mib() < 128);
  CHECK(model->parameters().size() == 128);
  CHECK(model->parameters()[0].abs().max().item<float>() > 0);
  CHECK_FALSE(is_deferred(model->parameters()[0]));
  CHECK(is_deferred(model->parameters()[2]));
}

TEST_CASE("[F08] who reads a deferred tensor, in whatever way, gets its values") {
  const auto expected = drawn(3);
  const auto tensor = drawn_later(3);
  SECTION("by a sum") { CHECK(tensor.sum().item<double>() == expected.sum().item<double>()); }
  SECTION("as another's argument") { CHECK((at::equal(expected, tensor))); }
  SECTION("in a list") { CHECK((at::equal(at::cat({expected, expected}), at::cat({tensor, tensor})))); }
  SECTION("by its copy") { CHECK((at::equal(expected, tensor.clone()))); }
  SECTION("in another dtype") { CHECK((at::equal(expected.to(at::kDouble), tensor.to(at::kDouble)))); }
  SECTION("by a view") {
    const auto view = tensor.view({-1}).narrow(0, 100, 50);
    CHECK(is_deferred(view));
    CHECK((at::equal(expected.view({-1}).narrow(0, 100, 50), view)));
    CHECK_FALSE(is_deferred(tensor));
    CHECK(tensor.data_ptr<float>() + 100 == view.data_ptr<float>());
  }
  SECTION("by a view that has to copy") {
    CHECK((at::equal(expected.t().contiguous(), tensor.t().contiguous())));
    CHECK((at::equal(expected.t().reshape({-1}), tensor.t().reshape({-1}))));
  }
  SECTION("in place") { CHECK((at::equal(expected * 2, tensor.mul_(2)))); }
  SECTION("detached, as data, as another's data") {
    auto other = at::empty({1});
    other.set_data(tensor);
    CHECK(is_deferred(other));
    CHECK(is_deferred(at::empty_like(tensor)) == false);
    CHECK(is_deferred(tensor));
    CHECK((at::equal(expected, other)));
    CHECK((at::equal(expected, tensor.detach())));
    CHECK((at::equal(expected, tensor.data())));
  }
  SECTION("by another handle, and on another thread") {
    const auto handle = tensor;
    std::thread([&] { CHECK((at::equal(expected, handle))); }).join();
    CHECK_FALSE(is_deferred(tensor));
  }
  SECTION("by its gradient") {
    tensor.set_requires_grad(true);
    (tensor * tensor).sum().backward();
    CHECK((at::equal(expected * 2, tensor.grad())));
  }
  SECTION("by printing it") {
    std::ostringstream seen, wanted;
    seen << tensor.narrow(0, 0, 2), wanted << expected.narrow(0, 0, 2);
    CHECK(seen.str() == wanted.str());
  }
}

TEST_CASE("[F08] a deferred tensor's address is refused, with what to do, until it is materialized") {
  const auto tensor = drawn_later(3);
  const auto refused =
      Contains("no memory yet, since deferred initialisation gives a model its values later: call troupe::materialize");
  CHECK_THROWS_WITH(tensor.data_ptr(), refused);
  CHECK_THROWS_WITH(tensor.data_ptr<float>(), refused);
  CHECK_THROWS_WITH(tensor.const_data_ptr<float>(), refused);
  CHECK_THROWS_WITH((tensor.accessor<float, 2>()), refused);
  CHECK_THROWS_WITH(tensor.storage().data(), refused);
  std::ostringstream file;
  CHECK_THROWS_WITH(torch::save(tensor, file), refused);
  materialize(tensor);
  CHECK(tensor.data_ptr<float>()[7] == drawn(3).data_ptr<float>()[7]);
  std::stringstream saved;
  torch::save(tensor, saved);
  at::Tensor loaded;
  torch::load(loaded, saved);
  CHECK((at::equal(loaded, tensor)));
}

TEST_CASE("[F08] only what is LibTorch's own to allocate is deferred, in the scope and where no view was left") {
  const auto outside = at::empty({200, 200});
  outside.normal_();
  CHECK_FALSE(is_deferred(outside));
  std::vector<float> memory(40'000);
  at::Tensor inside, copied;
  {
    const DeferredInitScope scope;
    outside.mul_(2);
    CHECK_FALSE(is_deferred(outside));
    at::from_blob(memory.data(), {200, 200}).fill_(4);
    CHECK(memory[39'999] == 4);
    auto viewed = at::empty({200, 200});
    const auto view = viewed.view({-1});
    viewed.fill_(5);
    CHECK_FALSE(is_deferred(viewed));
    CHECK(view.data_ptr<float>()[39'999] == 5);
    inside = at::empty({200, 200}).fill_(3);
    CHECK(is_deferred(inside));
    copied = inside + 1;
    CHECK_FALSE(is_deferred(inside));
    CHECK(copied.eq(4).all().item<bool>());
  }
  CHECK_FALSE(is_deferred(at::empty({200, 200}).fill_(3)));
}

TEST_CASE("[F08] a deferred parameter refuses what another would refuse") {
  const DeferredInitScope scope;
  const auto parameter = at::empty({200, 200}).normal_().set_requires_grad(true);
  CHECK_THROWS_WITH(parameter.fill_(1), Contains("leaf Variable that requires grad"));
  CHECK_THROWS_AS(at::empty({200, 200}).normal_(0, -1), c10::Error);
}

TEST_CASE("[F08] a parameter that is filled row by row does not take more memory in calls than in values") {
  const auto rows = [](const at::Tensor& tensor) {
    for (int i = 0; i < 200; ++i) tensor[i].normal_(0, 1.0 / (i + 1));
    return tensor;
  };
  seed_generator(4, {});
  const auto expected = rows(drawn(4));
  const auto tensor = deferred_init([&] { return rows(drawn(4)); });
  CHECK_FALSE(is_deferred(tensor));
  CHECK((at::equal(expected, tensor)));
}
