#include "tensor_io/layers/module_code.hpp"

#include <torch/torch.h>

#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

using namespace troupe;

namespace {

struct CodedLinear final : torch::nn::Module, ModuleCode {
  explicit CodedLinear(std::uint64_t hash) : file(hash) { register_module("linear", linear); }
  std::uint64_t file_hash() const noexcept override { return file; }
  torch::nn::Linear linear{2, 1};
  std::uint64_t file;
};

// Two models of one file.
struct CodedPair final : torch::nn::Module {
  explicit CodedPair(std::uint64_t file)
      : a(register_module("a", std::make_shared<CodedLinear>(file))),
        b(register_module("b", std::make_shared<CodedLinear>(file))) {}
  std::shared_ptr<CodedLinear> a, b;
};

std::vector<std::string> trained(const std::vector<std::uint64_t>& files) {
  Config config;
  config.run_dir = "";
  return testing::run_program(static_cast<int>(files.size()), config, [&](Rank& rank) {
    const auto model = rank.distribute(std::make_shared<CodedPair>(files[static_cast<std::size_t>(rank.rank())]));
    const auto optimizer = rank.make_optimizer(*model);
    const auto x = at::ones({1, 2});
    rank.backward((model->a->linear->forward(x) + model->b->linear->forward(x)).sum());
    rank.step(*optimizer);
  });
}

}  // namespace

TEST_CASE("[U07] ranks whose models have code from different files are named before the first update") {
  for (const auto& error : trained({7, 7, 7})) CHECK(error.empty());
  for (const auto& error : trained({7, 8, 7}))
    CHECK_THAT(error, Catch::Contains("rank 1") && Catch::Contains("a different compiled model"));
}
