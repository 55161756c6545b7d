// A program's loop has one optimizer and one place in the data at a time: others take their place, or are refused.
#include <mutex>
#include <optional>

#include "launch/program/job.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

struct HalvesImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 7));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(7, 2));
  at::Tensor forward(const at::Tensor& x) { return last(torch::tanh(first(x))); }
};
TORCH_MODULE(Halves);

// Of samples whose target is `mark`: 0 or 1.
class Marked final : public Dataset {
 public:
  explicit Marked(std::int64_t mark, bool throws = false) : mark_(mark), throws_(throws) {}
  std::int64_t size() const override { return 48; }
  Example get(std::int64_t index, const SampleContext&) const override {
    if (throws_) throw 7;
    return {at::arange(3, at::kFloat) * 0.3 + static_cast<double>(index) / 12, at::full({}, mark_, at::kLong)};
  }

 private:
  std::int64_t mark_;
  bool throws_;
};

at::Tensor loss_of(Halves& net, const Batch& batch) {
  return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
}

Config small(const std::string& strategy = "ddp") {
  Config config;
  config.strategy = strategy;
  config.batch_size = 12;
  config.epochs = 1;
  return config;
}

// What each rank says, of a program with a model on two ranks.
std::string said(const Config& config, const std::function<void(Rank&, Halves&)>& program) {
  const auto errors = testing::run_program(2, config, [&](Rank& rank) {
    Halves net = rank.distribute([] { return Halves(); });
    program(rank, net);
  });
  CHECK(errors.at(0).empty() == errors.at(1).empty());
  return errors.at(0);
}

// The losses of steps on the same batch, with `program`'s optimizer in each.
std::vector<double> losses_of(const std::string& strategy, int steps,
                              const std::function<torch::optim::Optimizer&(Halves&, int step)>& optimizer_of) {
  std::mutex mutex;
  std::vector<double> losses;
  const auto error = said(small(strategy), [&](Rank& rank, Halves& net) {
    const auto x = at::arange(36, at::kFloat).view({12, 3}) / 18 - 1;
    const auto target = x.sum(1).gt(0).to(at::kLong);
    for (int step = 0; step < steps; ++step) {
      auto& optimizer = optimizer_of(net, step);
      const auto loss = torch::nn::functional::cross_entropy(net->forward(x), target);
      rank.backward(loss);
      rank.step(optimizer);
      std::lock_guard lock(mutex);
      if (rank.is_main()) losses.push_back(loss.item<double>());
    }
  });
  CHECK(error == "");
  return losses;
}

}  // namespace

TEST_CASE("[C01] a second loop over data is refused while one is under way, and has all batches after it") {
  const auto two = said(small(), [](Rank& rank, Halves&) {
    auto a = rank.loader(std::make_shared<Marked>(0));
    auto b = rank.loader(std::make_shared<Marked>(1));
  });
  CHECK_THAT(two, Catch::Contains("loop: another loop over rank.loader is under way"));
  const auto inner = said(small(), [](Rank& rank, Halves&) {
    for (const auto& batch : rank.loader(std::make_shared<Marked>(0)))
      for (const auto& held_out : rank.uneven(std::vector<at::Tensor>{batch.input})) (void)held_out;
  });
  CHECK_THAT(inner, Catch::Contains("loop: another loop over rank.loader is under way"));
  const auto uneven = said(small(), [](Rank& rank, Halves&) {
    for (const auto& batch : rank.uneven(std::vector<at::Tensor>{at::ones({4, 3})}))
      for (const auto& held_out : rank.loader(std::make_shared<Marked>(0))) (void)held_out, (void)batch;
  });
  CHECK_THAT(uneven, Catch::Contains("loop: another loop over rank.uneven is under way"));

  const auto one_after_the_other = said(small(), [](Rank& rank, Halves& net) {
    const auto optimizer = rank.make_optimizer(*net);
    auto a = rank.loader(std::make_shared<Marked>(0));
    const auto read = [&](BatchStream& stream, std::int64_t mark) {
      int batches = 0;
      while (const auto batch = stream.next()) {
        if (batch->target.ne(mark).any().item<bool>()) throw std::runtime_error("a batch of the other data set");
        rank.backward(loss_of(net, *batch));
        rank.step(*optimizer);
        ++batches;
      }
      if (batches != 4) throw std::runtime_error(std::to_string(batches) + " batches");
    };
    read(a, 0);
    auto b = rank.loader(std::make_shared<Marked>(1));  // the first one is still there
    read(b, 1);
  });
  CHECK(one_after_the_other == "");
}

TEST_CASE("[T02] an optimizer that is made anew at the same place trains on, whatever the strategy") {
  const std::string strategy = GENERATE("ddp", "zero1", "zero2", "fsdp", "local_sgd");
  INFO(strategy);
  const auto anew = [](Halves& net, int step) -> torch::optim::Optimizer& {
    thread_local std::optional<torch::optim::Adam> optimizer;
    if (step % 4 == 0) optimizer.emplace(net->parameters(), torch::optim::AdamOptions(0.05));
    return *optimizer;
  };
  const auto ddp = losses_of("ddp", 12, anew), other = losses_of(strategy, 12, anew);
  REQUIRE(other.size() == ddp.size());
  for (std::size_t s = 0; s < ddp.size(); ++s) CHECK(other[s] == Approx(ddp[s]).epsilon(1e-5));
  CHECK(ddp.back() < ddp[8]);
}

TEST_CASE("[T02] a group that is added after steps trains, or is refused where the strategy has shards") {
  const auto halves = [](Halves& net, int step) -> torch::optim::Optimizer& {
    thread_local std::optional<torch::optim::Adam> optimizer;
    if (step == 0) optimizer.emplace(net->last->parameters(), torch::optim::AdamOptions(0.05));
    if (step == 3) optimizer->add_param_group(torch::optim::OptimizerParamGroup(net->first->parameters()));
    return *optimizer;
  };
  CHECK(losses_of("ddp", 6, halves).size() == 6);
  const auto program = [&](Rank& rank, Halves& net) {
    for (int step = 0; step < 6; ++step) {
      rank.backward(net->forward(at::ones({12, 3})).square().mean());
      auto& optimizer = halves(net, step);
      rank.step(optimizer);
    }
  };
  CHECK(said(small("ddp"), program) == "");
  CHECK_THAT(said(small("zero1"), program), Catch::Contains("its groups have changed after the strategy gave it"));
}

TEST_CASE("[T02] [C01] optimizers that take turns are refused, and so is another one than checkpoints hold") {
  const std::string strategy = GENERATE("ddp", "fsdp");
  INFO(strategy);
  const auto turns = said(small(strategy), [](Rank& rank, Halves& net) {
    torch::optim::Adam a(net->first->parameters()), b(net->last->parameters());
    for (int step = 0; step < 4; ++step) {
      rank.backward(net->forward(at::ones({12, 3})).square().mean());
      step % 2 == 0 ? rank.step(a) : rank.step(b);
    }
  });
  CHECK_THAT(turns, Catch::Contains("step: two optimizers take turns"));
  const auto after = said(small(strategy), [](Rank& rank, Halves& net) {
    const auto a = rank.make_optimizer(*net), b = rank.make_optimizer(*net);
    for (int step = 0; step < 4; ++step) {
      rank.backward(net->forward(at::ones({12, 3})).square().mean());
      rank.step(step < 2 ? *a : *b);
    }
  });
  CHECK(after == "");
  testing::ScratchDirectory folder;
  auto config = small(strategy);
  config.checkpoint_dir = folder.path();
  const auto other = said(config, [](Rank& rank, Halves& net) {
    const auto a = rank.make_optimizer(*net), b = rank.make_optimizer(*net);
    rank.keep_checkpoints(*a);
    for (const auto& batch : rank.loader(std::make_shared<Marked>(0))) {
      rank.backward(loss_of(net, batch));
      rank.step(*b);
    }
  });
  CHECK_THAT(other, Catch::Contains("step: it was given a different optimizer than keep_checkpoints"));
}

TEST_CASE("[S05] a data set that throws what is no exception ends the job with a line") {
  for (const std::int64_t workers : {0, 1}) {
    auto config = small();
    config.num_workers = workers;
    const auto error = said(config, [](Rank& rank, Halves&) {
      for (const auto& batch : rank.loader(std::make_shared<Marked>(0, true))) (void)batch;
    });
    CHECK_THAT(error, Catch::Contains("an exception that is not a std::exception"));
  }
}
