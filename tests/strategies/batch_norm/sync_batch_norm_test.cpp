#include "strategies/batch_norm/sync_batch_norm.hpp"

#include <mutex>

#include "tests/catch.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/rank_threads.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

/// What a BatchNorm did with a batch.
struct Outcome {
  at::Tensor output, grad_input, grad_weight, grad_bias, running_mean, running_var;
};

// A loss whose gradient is different for each value and depends on the output.
at::Tensor loss_of(const at::Tensor& output, const at::Tensor& weights) {
  return (output * weights).sum() + 0.5 * (output.square() * weights).sum();
}

template <class Holder>
Outcome run(Holder& norm, const at::Tensor& input, const at::Tensor& loss_weights) {
  auto leaf = input.detach().clone(at::MemoryFormat::Preserve).requires_grad_();
  const auto output = norm->forward(leaf);
  loss_of(output.to(loss_weights.scalar_type()), loss_weights).backward();
  return {output.detach(),          leaf.grad(), norm->weight.grad(), norm->bias.grad(), norm->running_mean.clone(),
          norm->running_var.clone()};
}

template <class Holder>
Holder make_norm(std::int64_t features, at::ScalarType dtype = at::kFloat) {
  Holder norm(torch::nn::BatchNormOptions(features).momentum(0.3));
  torch::NoGradGuard no_grad;
  norm->weight.copy_(pattern({features}, 9) + 1.5);
  norm->bias.copy_(pattern({features}, 8));
  norm->to(dtype);
  return norm;
}

// Where rank r's samples begin: uneven parts.
std::int64_t begin_of(int rank, int world_size, std::int64_t samples) {
  return samples * rank * (rank + 1) / (world_size * (world_size + 1));
}

template <class Stock, class Ours>
void compare_with_one_rank(const at::Tensor& batch, int world_size, double tolerance) {
  const auto wide = batch.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto weights = pattern(batch.sizes().vec(), 31).to(wide);
  auto stock = make_norm<Stock>(batch.size(1), wide);
  const auto whole = run(stock, batch, weights);
  std::vector<Outcome> parts(static_cast<std::size_t>(world_size));
  run_ranks({{"shm", "shm"}, world_size}, [&](Communicator& communicator) {
    const auto r = communicator.rank();
    auto norm = make_norm<Ours>(batch.size(1), wide);
    norm->synchronise(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &communicator));
    const auto begin = begin_of(r, world_size, batch.size(0)), n = begin_of(r + 1, world_size, batch.size(0)) - begin;
    parts[static_cast<std::size_t>(r)] = run(norm, batch.narrow(0, begin, n), weights.narrow(0, begin, n));
  });
  std::vector<at::Tensor> outputs, grad_inputs;
  auto grad_weight = at::zeros_like(whole.grad_weight), grad_bias = at::zeros_like(whole.grad_bias);
  for (const auto& part : parts) {
    outputs.push_back(part.output);
    grad_inputs.push_back(part.grad_input);
    grad_weight += part.grad_weight;
    grad_bias += part.grad_bias;
    CHECK(max_difference(part.running_mean, whole.running_mean) < tolerance);
    CHECK(max_difference(part.running_var, whole.running_var) < tolerance);
    CHECK(at::equal(part.running_mean, parts[0].running_mean));
    CHECK(at::equal(part.running_var, parts[0].running_var));
  }
  CHECK(max_difference(at::cat(outputs), whole.output) < tolerance);
  CHECK(max_difference(at::cat(grad_inputs), whole.grad_input) < tolerance);
  CHECK(max_difference(grad_weight, whole.grad_weight) < tolerance * 20);
  CHECK(max_difference(grad_bias, whole.grad_bias) < tolerance * 20);
  CHECK((at::cat(outputs).sizes() == batch.sizes()));
}

}  // namespace

TEST_CASE("[D09] ranks with parts of a batch compute what one rank computes with the whole") {
  const auto world_size = GENERATE(1, 2, 3);
  INFO(world_size << " ranks");
  SECTION("1d, (N, C)") {
    compare_with_one_rank<torch::nn::BatchNorm1d, nn::BatchNorm1d>(pattern({13, 5}, 1), world_size, 2e-6);
  }
  SECTION("1d, (N, C, L)") {
    compare_with_one_rank<torch::nn::BatchNorm1d, nn::BatchNorm1d>(pattern({12, 5, 7}, 1), world_size, 2e-6);
  }
  SECTION("2d") {
    compare_with_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm2d>(pattern({12, 6, 5, 4}, 1), world_size, 4e-6);
  }
  SECTION("2d, channels last") {
    compare_with_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm2d>(
        pattern({12, 6, 5, 4}, 1).contiguous(at::MemoryFormat::ChannelsLast), world_size, 2e-5);
  }
  SECTION("3d") {
    compare_with_one_rank<torch::nn::BatchNorm3d, nn::BatchNorm3d>(pattern({6, 3, 2, 5, 4}, 1), world_size, 4e-6);
  }
  SECTION("any number of dimensions") {
    compare_with_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm>(pattern({12, 6, 5, 4}, 1), world_size, 4e-6);
  }
  SECTION("f64") {
    compare_with_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm2d>(pattern({12, 6, 5, 4}, 1).to(at::kDouble),
                                                                   world_size, 1e-13);
  }
  // One unit in the last place of the largest gradients (8 to 16): 0.0625 in bf16, a few 1e-6 times the adds in f32.
  SECTION("bf16 from autocast, statistics in f32") {
    compare_with_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm2d>(pattern({12, 6, 5, 4}, 1).to(at::kBFloat16),
                                                                   world_size, 7e-2);
  }
}

TEST_CASE("[D09] a BatchNorm without weight, bias and running statistics is synchronised too") {
  const auto batch = pattern({12, 6, 5, 4}, 1), weights = pattern({12, 6, 5, 4}, 31);
  const auto options = torch::nn::BatchNormOptions(6).affine(false).track_running_stats(false);
  const auto gradient = [&](auto norm, std::int64_t begin, std::int64_t n) {
    auto leaf = batch.narrow(0, begin, n).clone().requires_grad_();
    loss_of(norm->forward(leaf), weights.narrow(0, begin, n)).backward();
    return leaf.grad();
  };
  std::vector<at::Tensor> parts(2);
  run_ranks({{"shm", "shm"}, 2}, [&](Communicator& communicator) {
    nn::BatchNorm2d norm(options);
    norm->synchronise(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &communicator));
    parts[static_cast<std::size_t>(communicator.rank())] =
        gradient(norm, 5 * communicator.rank(), 5 + 2 * communicator.rank());
  });
  CHECK(max_difference(at::cat(parts), gradient(torch::nn::BatchNorm2d(options), 0, 12)) < 4e-6);
}

TEST_CASE("[D09] statistics stay sound where the mean dwarfs the deviation") {
  const auto batch = pattern({16, 4, 6, 6}, 3).to(at::kDouble) + 1e3;
  compare_with_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm2d>(batch, 2, 1e-8);
}

TEST_CASE("[D09] a rank without data joins in and does not count") {
  const auto batch = pattern({10, 4, 3, 3}, 1), weights = pattern({10, 4, 3, 3}, 5);
  auto stock = make_norm<torch::nn::BatchNorm2d>(4);
  const auto whole = run(stock, batch, weights);
  std::vector<Outcome> parts(2);
  run_ranks({{"shm", "shm"}, 2}, [&](Communicator& communicator) {
    auto norm = make_norm<nn::BatchNorm2d>(4);
    norm->synchronise(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &communicator));
    const bool empty = communicator.rank() == 1;
    if (empty) count_samples_in_sync_batchnorm(*norm, 0);
    parts[static_cast<std::size_t>(communicator.rank())] =
        run(norm, empty ? pattern({3, 4, 3, 3}, 50) * 100 : batch, empty ? at::zeros({3, 4, 3, 3}) : weights);
  });
  CHECK(max_difference(parts[0].output, whole.output) < 2e-6);
  CHECK(max_difference(parts[0].grad_input, whole.grad_input) < 4e-6);
  for (const auto& part : parts) {
    CHECK(max_difference(part.running_mean, whole.running_mean) < 1e-6);
    CHECK(max_difference(part.running_var, whole.running_var) < 1e-6);
  }
  CHECK(parts[1].grad_input.abs().max().item<float>() == 0);
}

TEST_CASE("[D09] a batch that every rank only repeats counts nothing, and the ranks go on") {
  run_ranks({{"shm", "shm"}, 2}, [](Communicator& communicator) {
    nn::BatchNorm1d norm(torch::nn::BatchNormOptions(3).momentum(std::nullopt));
    norm->synchronise(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &communicator));
    norm->forward(pattern({4, 3}, 10));
    const auto mean = norm->running_mean.clone(), variance = norm->running_var.clone();
    norm->count_samples(0);
    auto input = pattern({2, 3}, 20).requires_grad_();
    const auto output = norm->forward(input);
    (output.sum() * 0).backward();
    require(output.isfinite().all().item<bool>(), "what comes out is finite");
    require(input.grad().abs().sum().item<float>() == 0, "no gradient comes from it");
    require(at::equal(norm->running_mean, mean) && at::equal(norm->running_var, variance), "statistics stay");
    require(norm->num_batches_tracked.item<std::int64_t>() == 1, "one batch was counted");
  });
}

TEST_CASE("[D09] samples that pad a batch do not count") {
  const auto batch = pattern({10, 4, 3, 3}, 1), weights = pattern({10, 4, 3, 3}, 5);
  auto stock = make_norm<torch::nn::BatchNorm2d>(4);
  const auto whole = run(stock, batch, weights);
  std::vector<Outcome> parts(2);
  run_ranks({{"shm", "shm"}, 2}, [&](Communicator& communicator) {
    auto norm = make_norm<nn::BatchNorm2d>(4);
    norm->synchronise(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &communicator));
    const bool padded = communicator.rank() == 1;  // 6 samples and 4; the last two of the 6 are repeats
    if (padded) norm->count_samples(4);
    const auto input = padded ? at::cat({batch.narrow(0, 6, 4), batch.narrow(0, 0, 2)}) : batch.narrow(0, 0, 6);
    const auto w = padded ? at::cat({weights.narrow(0, 6, 4), at::zeros({2, 4, 3, 3})}) : weights.narrow(0, 0, 6);
    parts[static_cast<std::size_t>(communicator.rank())] = run(norm, input, w);
  });
  CHECK(max_difference(at::cat({parts[0].grad_input, parts[1].grad_input.narrow(0, 0, 4)}), whole.grad_input) < 4e-6);
  CHECK(max_difference(parts[1].running_var, whole.running_var) < 1e-6);
}

TEST_CASE("a BatchNorm that is not synchronised is LibTorch's bit for bit, in training and in eval") {
  auto ours = make_norm<nn::BatchNorm2d>(6);
  auto stock = make_norm<torch::nn::BatchNorm2d>(6);
  for (int step = 0; step < 3; ++step) {
    const auto input = pattern({4, 6, 5, 5}, step), weights = pattern({4, 6, 5, 5}, step + 9);
    ours->zero_grad();
    stock->zero_grad();
    const auto a = run(ours, input, weights), b = run(stock, input, weights);
    CHECK(at::equal(a.output, b.output));
    CHECK(at::equal(a.grad_input, b.grad_input));
    CHECK(at::equal(a.running_var, b.running_var));
  }
  ours->eval();
  stock->eval();
  CHECK(at::equal(ours->forward(pattern({2, 6, 5, 5}, 7)), stock->forward(pattern({2, 6, 5, 5}, 7))));
  const auto names = [](const torch::nn::Module& module) {
    std::vector<std::string> list;
    for (const auto& item : module.named_parameters()) list.push_back(item.key());
    for (const auto& item : module.named_buffers()) list.push_back(item.key());
    return list;
  };
  CHECK((names(*ours) == names(*stock)));
}

TEST_CASE("a synchronised BatchNorm launches nothing in eval and averages all batches where momentum is unset") {
  run_ranks({{"shm", "shm"}, 2}, [](Communicator& communicator) {
    nn::BatchNorm1d norm(torch::nn::BatchNormOptions(3).momentum(std::nullopt));
    norm->synchronise(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &communicator), "norm");
    const auto batch = [&](int step) { return pattern({8, 3}, step + 10).narrow(0, communicator.rank() * 4, 4); };
    for (int step = 0; step < 3; ++step) norm->forward(batch(step));
    const auto mean = (pattern({8, 3}, 10).mean(0) + pattern({8, 3}, 11).mean(0) + pattern({8, 3}, 12).mean(0)) / 3;
    require(max_difference(norm->running_mean, mean) < 1e-6, "the running mean is that of three batches");
    require(norm->num_batches_tracked.item<std::int64_t>() == 3, "three batches");
    const auto launched = communicator.ledger().finished_count();
    require(launched == 3, "one collective per forward");
    norm->eval();
    norm->forward(batch(0));
    require(communicator.ledger().finished_count() == launched, "no collective in eval");
  });
}

TEST_CASE("[D09] a model's BatchNorms are converted wherever they are, and one of LibTorch's is refused by name") {
  const std::shared_ptr<Communicator> communicator = [] {
    CommunicatorOptions options;
    options.rendezvous = std::make_shared<LocalRendezvous>();
    return make_communicator(options);
  }();
  torch::nn::Sequential inner(torch::nn::Linear(4, 3), nn::BatchNorm1d(3));
  struct NestImpl : torch::nn::Module {
    torch::nn::Sequential inner{nullptr};
    torch::nn::Conv2d convolution = register_module("0", torch::nn::Conv2d(1, 2, 3));
    nn::BatchNorm2d first = register_module("1", nn::BatchNorm2d(2));
    explicit NestImpl(torch::nn::Sequential given) : inner(register_module("2", std::move(given))) {}
    nn::BatchNorm last = register_module("3", nn::BatchNorm(3));
  };
  const auto model = std::make_shared<NestImpl>(inner);
  CHECK(convert_sync_batchnorm(*model, communicator) == 3);
  std::ostringstream printed;
  printed << *inner;
  CHECK_THAT(printed.str(), Catch::Contains("troupe::nn::BatchNorm1d(3"));

  inner->push_back("stock", torch::nn::BatchNorm1d(3));
  CHECK_THROWS_WITH(convert_sync_batchnorm(*model, communicator),
                    Catch::Contains("2.stock") && Catch::Contains("troupe::nn::BatchNorm1d"));
  CHECK(inner->forward(at::ones({2, 4})).sizes() == at::IntArrayRef({2, 3}));
}

TEST_CASE("a synchronised BatchNorm refuses what has no statistics") {
  const auto failures = run_ranks_catching({{"shm", "shm"}, 2}, [](Communicator& communicator) {
    nn::BatchNorm1d norm(3);
    norm->synchronise(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &communicator), "head");
    norm->count_samples(communicator.rank() == 0 ? 1 : 0);
    norm->forward(at::ones({2, 3}));
  });
  for (const auto& failure : failures) {
    REQUIRE(failure.has_value());
    CHECK_THAT(failure->text, Catch::Contains("head") && Catch::Contains("1 value per channel"));
  }
  nn::BatchNorm2d norm(3);
  CHECK_THROWS_WITH(norm->forward(at::ones({2, 3})), Catch::Contains("2 dimensions"));
  CHECK_THROWS_WITH(norm->forward(at::ones({2, 4, 1, 1})), Catch::Contains("4 channels"));
}
