// A whole job on simulated ranks, one thread at a time.
#include <troupe/troupe.hpp>

#include "launch/testing/thread_schedule.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using troupe::testing::ScratchDirectory;
using troupe::testing::ThreadSchedule;

namespace {

// Numbers and their doubles.
class Doubles : public troupe::Dataset {
 public:
  std::int64_t size() const override { return 64; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const auto x = static_cast<float>(index) / 64;
    return {torch::full({1}, x), torch::full({1}, 2 * x)};
  }
};

struct Trained {
  std::uint64_t fingerprint = 0;
  std::vector<at::Tensor> weights;
};

Trained train(std::uint64_t seed) {
  Trained trained;
  const ScratchDirectory folder;
  {
    ThreadSchedule schedule({.seed = seed});
    troupe::Job job;
    job.model = [](const troupe::Config&) {
      return std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(1, 1));
    };
    job.data = [](const troupe::Config&) { return troupe::Datasets{std::make_shared<Doubles>(), nullptr}; };
    job.loss = [](torch::nn::Module& model, const troupe::Batch& batch, const troupe::Config&) {
      return troupe::Loss{
          torch::mse_loss(dynamic_cast<torch::nn::LinearImpl&>(model).forward(batch.input), batch.target)};
    };
    std::vector<std::string> words{"test",
                                   "--ranks",
                                   "3",
                                   "--batch_size",
                                   "12",
                                   "--epochs",
                                   "2",
                                   "--run_dir",
                                   folder / "run",
                                   "--checkpoint_dir",
                                   folder / "checkpoints"};
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    REQUIRE(troupe::run(job, static_cast<int>(arguments.size()), arguments.data()) == 0);
    trained.fingerprint = schedule.fingerprint();
  }
  for (const auto& [name, tensor] : troupe::load_checkpoint(folder / "checkpoints", "latest").state.tensors)
    trained.weights.push_back(tensor);
  return trained;
}

}  // namespace

TEST_CASE(
    "[U01] a job whose threads run one at a time goes the same way for the same seed, and to the same bits for all") {
  const auto first = train(0);  // and makes what is made once in a process
  REQUIRE_FALSE(first.weights.empty());
  std::set<std::uint64_t> ways;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const auto one = train(seed), again = train(seed);
    CHECK(one.fingerprint == again.fingerprint);
    ways.insert(one.fingerprint);
    REQUIRE(one.weights.size() == first.weights.size());
    for (std::size_t i = 0; i < first.weights.size(); ++i) CHECK(one.weights[i].equal(first.weights[i]));
  }
  CHECK(ways.size() == 4);
}
