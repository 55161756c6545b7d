#include "tensor_io/layers/dropout.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/philox.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

std::shared_ptr<ForwardPosition> position_of(std::int64_t step = 3, std::int64_t micro_batch = 0, int shard = 0,
                                             std::uint64_t seed = 7) {
  return std::make_shared<ForwardPosition>(ForwardPosition{seed, step, micro_batch, shard, 1});
}

at::Tensor drop(const std::shared_ptr<ForwardPosition>& position, std::int64_t layer = 0, double p = 0.5) {
  nn::Dropout dropout(p);
  dropout->place(position, layer);
  return dropout(at::ones({8, 8}));
}

}  // namespace

TEST_CASE("dropout's numbers are Philox's, element by element") {
  // Philox4x32-10 of counter 0 and key 0, from Random123's known answers: 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
  const auto keeps = [](double p) { return dropout_mask({4}, p, 0, 0); };
  CHECK(keeps(0.35).equal(torch::tensor({true, true, true, true})));
  CHECK(keeps(0.5).equal(torch::tensor({false, true, true, true})));
  CHECK(keeps(0.65).equal(torch::tensor({false, true, true, false})));
  CHECK(keeps(0.8).equal(torch::tensor({false, true, false, false})));
  CHECK(keeps(1).equal(torch::tensor({false, false, false, false})));
}

TEST_CASE("the device's Philox has the numbers of LibTorch's") {
  // Where a half of the counter carries, and at the ends.
  const std::uint64_t values[] = {0, 1, 0xffffffff, 0x100000000, 0x0123456789abcdef, 0xffffffffffffffff};
  for (const auto key : values) {
    for (const auto subsequence : values) {
      for (const auto offset : values) {
        at::Philox4_32 theirs(key, 0, 0);
        // Its constructor adds the offset with a carry into the subsequence; a fresh engine with the offset set has
        // none.
        theirs.reset_state(key, subsequence);
        theirs.set_offset(offset);
        const auto ours = philox(key, subsequence, offset);
        for (const auto number : ours.of) REQUIRE(number == theirs());
      }
    }
  }
}

TEST_CASE("a dropout mask is the same however many threads make it, and a longer one begins like a shorter one") {
  const std::int64_t n = GENERATE(0, 1, 5, 4096, 200'003);
  const auto before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = dropout_mask({n}, 0.3, 9, 2);
  at::set_num_threads(4);
  const auto four = dropout_mask({n}, 0.3, 9, 2);
  CHECK(dropout_mask({n + 7}, 0.3, 9, 2).narrow(0, 0, n).equal(one));
  at::set_num_threads(before);
  CHECK(four.equal(one));
  if (n > 100'000)
    CHECK(one.to(at::kDouble).mean().item<double>() == Approx(0.7).margin(0.004));  // four standard deviations
}

TEST_CASE("a dropout depends on seed, step, micro-batch, shard, layer and call, and on nothing else") {
  const auto reference = drop(position_of());
  CHECK(drop(position_of()).equal(reference));
  torch::manual_seed(1);
  CHECK(drop(position_of()).equal(reference));
  CHECK_FALSE(drop(position_of(4)).equal(reference));
  CHECK_FALSE(drop(position_of(3, 1)).equal(reference));
  CHECK_FALSE(drop(position_of(3, 0, 1)).equal(reference));
  CHECK_FALSE(drop(position_of(3, 0, 0, 8)).equal(reference));
  CHECK_FALSE(drop(position_of(), 1).equal(reference));

  const auto position = position_of();
  nn::Dropout dropout(0.5);
  dropout->place(position, 0);
  const auto x = at::ones({8, 8});
  const auto first = dropout(x), second = dropout(x);
  CHECK(first.equal(reference));
  CHECK_FALSE(second.equal(first));
  ++position->visit;  // the same forward once more, as a resumed run makes it
  CHECK(dropout(x).equal(first));
  CHECK(dropout(x).equal(second));
}

TEST_CASE("dropout computes LibTorch's numbers for the mask it drew, and its gradient exactly") {
  const auto dtype = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const auto x = at::randn({4, 3, 5, 5}, at::detail::createCPUGenerator(1))
                     .to(dtype)
                     .contiguous(at::MemoryFormat::ChannelsLast)
                     .requires_grad_();
  nn::Dropout dropout(0.25);
  dropout->place(position_of(), 0);
  const auto y = dropout(x);
  CHECK(y.scalar_type() == dtype);
  const auto mask = y.detach().ne(0);
  const auto factor = mask.to(dtype).div_(0.75);  // as at::dropout does it
  CHECK(y.equal(x * factor));
  const auto dy = at::randn({4, 3, 5, 5}, at::detail::createCPUGenerator(2)).to(dtype);
  y.backward(dy);
  CHECK(x.grad().equal(dy * factor));
  CHECK(mask.any().item<bool>());
  CHECK_FALSE(mask.all().item<bool>());
}

TEST_CASE("dropout keeps all where p is 0 or in eval, nothing where p is 1, and refuses to work in place") {
  const auto x = at::ones({100});
  CHECK(drop(position_of(), 0, 0).equal(at::ones({8, 8})));
  CHECK(drop(position_of(), 0, 1).equal(at::zeros({8, 8})));
  nn::Dropout dropout(0.5);
  dropout->eval();
  CHECK(dropout(x).equal(x));
  nn::Dropout in_place(torch::nn::DropoutOptions(0.5).inplace(true));
  CHECK_THROWS_WITH(in_place(x), Catch::Contains("inplace"));
  CHECK_THROWS(nn::Dropout(1.5));
}

TEST_CASE("a dropout that was not distributed follows torch::manual_seed") {
  nn::Dropout dropout(0.5);
  const auto x = at::ones({64});
  torch::manual_seed(5);
  const auto first = dropout(x), second = dropout(x);
  torch::manual_seed(5);
  CHECK(dropout(x).equal(first));
  CHECK_FALSE(second.equal(first));
}

TEST_CASE("a model's dropouts are placed in the order of their registration, each as a layer of its own") {
  struct Model : torch::nn::Module {
    nn::Dropout first = register_module("first", nn::Dropout(0.5));
    torch::nn::Sequential inner =
        register_module("inner", torch::nn::Sequential(torch::nn::Linear(2, 2), nn::Dropout(0.5)));
  };
  const auto model = std::make_shared<Model>();
  CHECK(place_dropout(*model, position_of()) == 2);
  CHECK(model->first(at::ones({8, 8})).equal(drop(position_of(), 0)));
  CHECK(model->inner->at<nn::DropoutImpl>(1).forward(at::ones({8, 8})).equal(drop(position_of(), 1)));
  std::ostringstream printed;
  printed << *model->first;
  CHECK(printed.str() == "troupe::nn::Dropout(p=0.5)");
}
