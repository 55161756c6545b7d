// What a loop of one's own has beside the steps, on simulated ranks; examples_test.cpp has the program.
#include <filesystem>
#include <mutex>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "launch/program/job.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

struct SumNetImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 7));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(7, 2));
  at::Tensor calls = register_buffer("calls", torch::zeros({1}));
  at::Tensor forward(const at::Tensor& x) { return last(torch::relu(first(x))); }
};
TORCH_MODULE(SumNet);

class Numbers final : public Dataset {
 public:
  std::int64_t size() const override { return 24; }
  Example get(std::int64_t index, const SampleContext&) const override {
    const auto x = at::arange(3, at::kFloat) * 0.3 + static_cast<double>(index) / 12;
    return {x, at::full({}, index % 2, at::kLong)};
  }
};

Config loop_config(int ranks, const std::string& strategy) {
  Config config;
  config.ranks = ranks;
  config.strategy = strategy;
  config.batch_size = 12;
  config.epochs = 2;
  config.lr = 0.1;
  config.momentum = 0.9;
  return config;
}

// Four steps; what `root` holds of the model then, by state_dict.
NamedTensors whole_after_steps(int ranks, const std::string& strategy, int root, bool torch_optimizer) {
  std::mutex mutex;
  NamedTensors whole;
  const auto errors = testing::run_program(ranks, loop_config(ranks, strategy), [&](Rank& rank) {
    auto model = rank.distribute([] { return SumNet(); });
    const auto ours = rank.make_optimizer(*model);
    torch::optim::SGD theirs(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    int steps = 0;
    for (const auto& batch : rank.loader(std::make_shared<Numbers>())) {
      rank.backward(torch::nn::functional::cross_entropy(model->forward(batch.input), batch.target));
      torch_optimizer ? (void)rank.step(theirs) : (void)rank.step(*ours);
      ++steps;
    }
    CHECK(steps == 4);
    const auto mine = torch_optimizer ? rank.state_dict(theirs, root) : rank.state_dict(*ours, root);
    std::lock_guard lock(mutex);
    if (rank.rank() == root) {
      whole = mine;
    } else {
      CHECK(mine.empty());
    }
  });
  for (const auto& error : errors) CHECK(error.empty());
  return whole;
}

Loss loss_of(SumNetImpl& model, const Batch& batch) {
  const auto scores = model.forward(batch.input);
  return {torch::nn::functional::cross_entropy(scores, batch.target), scores.argmax(1).eq(batch.target).sum()};
}

void train_by_hand(Rank& rank) {
  rank.keep_records();
  auto model = rank.distribute([] { return SumNet(); });
  const auto optimizer = rank.make_optimizer(*model);
  rank.keep_checkpoints(*optimizer);
  rank.validate_on(std::make_shared<Numbers>(), [&](const Batch& batch) { return loss_of(*model, batch); });
  for (const auto& batch : rank.loader(std::make_shared<Numbers>())) {
    rank.backward(loss_of(*model, batch));
    rank.step(*optimizer);
  }
}

void train_by_framework(Rank& rank) {
  Job job;
  job.model = [](const Config&) { return SumNet().ptr(); };
  job.data = [](const Config&) { return Datasets{std::make_shared<Numbers>(), std::make_shared<Numbers>()}; };
  job.loss = [](torch::nn::Module& model, const Batch& batch, const Config&) {
    return loss_of(dynamic_cast<SumNetImpl&>(model), batch);
  };
  train(job, rank);
}

// What a run leaves behind but for times and addresses: a line for each record, and which checkpoints there are.
std::string left_behind(Config config, const std::function<void(Rank&)>& body) {
  testing::ScratchDirectory folder;
  config.run_dir = folder / "run";
  config.checkpoint_dir = folder / "checkpoints";
  for (const auto& error : testing::run_program(static_cast<int>(config.ranks), config, body)) CHECK(error.empty());
  std::string left;
  std::istringstream lines(testing::read_text(folder / "run/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    left += record["kind"].dump();
    for (const char* name : {"step", "epoch", "loss_metrics/global_avg_loss", "accuracy", "lr", "samples_seen",
                             "validation_metrics/loss", "validation_metrics/accuracy", "best", "event", "text"})
      if (record.contains(name)) left += std::string(" ") + name + "=" + record[name].dump();
    left += "\n";
  }
  for (const char* name : {"best", "latest"}) {
    const auto link = std::filesystem::path(config.checkpoint_dir) / name;
    left += std::string(name) + ": " + (std::filesystem::exists(link) ? testing::read_text(link.string()) : "") + "\n";
  }
  return left;
}

}  // namespace

TEST_CASE(
    "[T07] [C01] a custom loop leaves the records, validations and checkpoints behind that the framework's leaves") {
  auto config = loop_config(GENERATE(1, 2), GENERATE(as<std::string>{}, "ddp", "fsdp"));
  config.epochs = 3;
  config.save_every = 2;
  config.log_interval = 1;
  config.validate_every = GENERATE(0, 1, 2);
  config.max_steps = GENERATE(0, 3);  // 3: it ends within an epoch
  const auto framework = left_behind(config, train_by_framework);
  CHECK(left_behind(config, train_by_hand) == framework);
  const bool validates = config.validate_every == 1 || (config.validate_every == 2 && config.max_steps == 0);
  const bool validates_last = config.validate_every > 0 && config.max_steps == 3;
  CHECK((framework.find("validation_metrics/accuracy") != std::string::npos) == (validates || validates_last));
  if (config.validate_every == 1) CHECK_THAT(framework, Catch::Contains("\"validation\" step=2 epoch=0 "));
  if (validates && config.max_steps == 0) {
    const auto last_of = config.validate_every == 1 ? "step=6 epoch=2 " : "step=4 epoch=1 ";
    CHECK_THAT(framework, Catch::Contains(std::string("\"validation\" ") + last_of));
  }
  CHECK(framework.ends_with("latest: \n") == false);
  CHECK((framework.find("best: \n") == std::string::npos) == (validates || validates_last));
}

TEST_CASE("[F05] state_dict gives one rank the whole model, whatever the strategy") {
  const bool torch_optimizer = GENERATE(false, true);
  const auto expected = whole_after_steps(1, "ddp", 0, torch_optimizer);
  REQUIRE(expected.size() == 5);
  for (const std::string strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
    for (const int ranks : {2, 3}) {
      INFO(strategy << " on " << ranks);
      const auto whole = whole_after_steps(ranks, strategy, ranks - 1, torch_optimizer);
      REQUIRE(whole.size() == expected.size());
      for (const auto& [name, values] : expected) {
        INFO(name);
        const auto found = std::find_if(whole.begin(), whole.end(),
                                        [&, wanted = name](const auto& item) { return item.first == wanted; });
        REQUIRE(found != whole.end());
        CHECK((found->second.sizes() == values.sizes()));
        CHECK(found->second.allclose(values, 1e-4, 1e-6));
      }
    }
  }
}

TEST_CASE("[C01] a loop of one's own that keeps no checkpoints refuses to resume, and says what to call") {
  auto config = loop_config(2, "ddp");
  config.resume = "latest";
  const auto errors = testing::run_program(2, config, [&](Rank& rank) {
    auto model = rank.distribute([] { return SumNet(); });
    (void)rank.loader(std::make_shared<Numbers>());
  });
  CHECK_THAT(errors[0],
             Catch::Contains("resume is 'latest'") && Catch::Contains("call rank.keep_checkpoints(optimizer)"));
}

TEST_CASE("[C01] a loop over uneven data, or with batches that Troupe does not make, refuses what it would not heed") {
  const auto error_of = [](const Config& config, bool uneven, const auto& use) {
    const auto errors = testing::run_program(1, config, [&](Rank& rank) {
      auto model = rank.distribute([] { return SumNet(); });
      const auto optimizer = rank.make_optimizer(*model);
      use(rank, *optimizer);
      if (!uneven) {
        rank.backward(Loss(model->forward(torch::ones({2, 3})).sum()));
        rank.step(*optimizer);
        return;
      }
      for (const auto& batch : rank.uneven(std::vector<at::Tensor>{torch::ones({2, 3})})) {
        rank.backward(Loss(model->forward(batch).sum()));
        rank.step(*optimizer);
      }
    });
    return errors[0];
  };
  const auto nothing = [](Rank&, Optimizer&) {};
  for (const bool uneven : {false, true}) {
    auto config = loop_config(1, "ddp");
    CHECK(error_of(config, uneven, nothing).empty());
    config.resume = "latest";
    CHECK_THAT(error_of(config, uneven, nothing),
               Catch::Contains("resume is 'latest', and this program keeps no checkpoints"));
    config.resume.clear();
    set_config_value(config, "save_every", "2", "--save_every");
    CHECK_THAT(error_of(config, uneven, nothing),
               Catch::Contains("save_every is 2, and this program keeps no checkpoints"));
    config.as_begun = {"save_every"};  // of a config that was printed and read again
    CHECK(error_of(config, uneven, nothing).empty());
  }
  testing::ScratchDirectory folder;
  auto config = loop_config(1, "ddp");
  config.checkpoint_dir = folder / "checkpoints";
  CHECK_THAT(error_of(config, false, [](Rank& rank, Optimizer& optimizer) { rank.keep_checkpoints(optimizer); }),
             Catch::Contains("so nothing would be saved"));
  CHECK_THAT(error_of(config, false,
                      [](Rank& rank, Optimizer&) {
                        rank.validate_on(std::make_shared<Numbers>(), [](const Batch&) { return Loss(at::zeros({})); });
                      }),
             Catch::Contains("so nothing would be validated"));
}

TEST_CASE("[C01] keep_checkpoints and validate_on come after distribute, once, and before the loader") {
  testing::ScratchDirectory folder;
  auto config = loop_config(1, "ddp");
  config.checkpoint_dir = folder / "checkpoints";
  std::vector<std::string> refused;
  const auto errors = testing::run_program(1, config, [&](Rank& rank) {
    torch::nn::Linear other(1, 1);
    const auto early = rank.make_optimizer(*other);
    const auto expect = [&](const auto& what) {
      try {
        what();
      } catch (const Error& error) {
        refused.push_back(error.report().cause);
      }
    };
    const auto nothing = [](const Batch&) { return Loss(at::zeros({})); };
    expect([&] { rank.keep_checkpoints(*early); });
    expect([&] { rank.validate_on(std::make_shared<Numbers>(), nothing); });
    expect([&] { (void)rank.state_dict(*early); });
    auto model = rank.distribute([] { return SumNet(); });
    const auto optimizer = rank.make_optimizer(*model);
    expect([&] { (void)rank.state_dict(*optimizer, 1); });
    {
      const auto loader = rank.loader(std::make_shared<Numbers>());
      expect([&] { rank.keep_checkpoints(*optimizer); });
      expect([&] { rank.validate_on(std::make_shared<Numbers>(), nothing); });
    }
    rank.keep_checkpoints(*optimizer);
    expect([&] { rank.keep_checkpoints(*optimizer); });
    rank.validate_on(std::make_shared<Numbers>(), nothing);
    expect([&] { rank.validate_on(std::make_shared<Numbers>(), nothing); });
  });
  CHECK(errors[0].empty());
  CHECK((refused == std::vector<std::string>{"no model was distributed", "no model was distributed",
                                             "no model was distributed", "there is no rank 1", "the loader has begun",
                                             "the loader has begun", "it was called before", "it was called before"}));
}

TEST_CASE(
    "[S03] a quick data set's batches are made in the loop's own thread, and what it throws ends all ranks by name") {
  class Quick final : public Dataset {
   public:
    explicit Quick(std::int64_t broken) : broken_(broken) {}
    std::int64_t size() const override { return rows_.size(); }
    Example get(std::int64_t index, const SampleContext& context) const override {
      if (index == broken_) throw std::runtime_error("sample " + std::to_string(index) + " is rotten");
      std::lock_guard lock(mutex_);
      threads_.push_back(std::this_thread::get_id());
      return rows_.get(index, context);
    }
    bool quick(std::int64_t) const override { return true; }
    std::vector<std::thread::id> threads() const { return threads_; }  // NOLINT(*-const-return-type)

   private:
    Numbers rows_;
    std::int64_t broken_;
    mutable std::mutex mutex_;
    mutable std::vector<std::thread::id> threads_;
  };
  const auto run = [](int ranks, std::int64_t broken) {
    auto config = loop_config(ranks, "ddp");
    config.shuffle = false;
    return testing::run_program(ranks, config, [&](Rank& rank) {
      auto model = rank.distribute([] { return SumNet(); });
      const auto optimizer = rank.make_optimizer(*model);
      const auto data = std::make_shared<Quick>(broken);
      int steps = 0;
      for (const auto& batch : rank.loader(data)) {
        rank.backward(torch::nn::functional::cross_entropy(model->forward(batch.input), batch.target));
        rank.step(*optimizer);
        ++steps;
      }
      CHECK(steps == 4);
      const auto threads = data->threads();
      CHECK(threads.size() == static_cast<std::size_t>(48 / ranks));
      CHECK(std::count(threads.begin(), threads.end(), std::this_thread::get_id()) ==
            static_cast<std::ptrdiff_t>(threads.size()));
    });
  };
  for (const auto& error : run(2, -1)) CHECK(error.empty());
  const auto errors = run(2, 19);  // rank 1's, in the second step
  for (const auto& error : errors)
    CHECK_THAT(error, Catch::Contains("rank 1") && Catch::Contains("sample 19 is rotten"));
  CHECK(errors.size() == 2);
}

TEST_CASE("[T01] a setting that a loop of one's own does not honour is refused before the first step") {
  auto config = loop_config(1, "ddp");
  int steps = 0;
  const auto run = [&](bool asks_for_autocast, bool theirs) {
    return testing::run_program(1, config, [&](Rank& rank) {
      auto model = rank.distribute([] { return SumNet(); });
      const auto ours = rank.make_optimizer(*model);
      torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
      for (const auto& batch : rank.loader(std::make_shared<Numbers>())) {
        if (asks_for_autocast) (void)rank.autocast();
        rank.backward(torch::nn::functional::cross_entropy(model->forward(batch.input), batch.target));
        theirs ? (void)rank.step(sgd) : (void)rank.step(*ours);
        ++steps;
      }
    })[0];
  };
  SECTION("autocast") {
    config.use_amp = true;
    CHECK_THAT(run(false, false), Catch::Contains("use_amp") && Catch::Contains("rank.autocast()"));
    CHECK(steps == 0);
    CHECK(run(true, false) == "");
  }
  SECTION("the config's rate beside an optimizer that has its own") {
    config.lr = 0.5;
    config.sources["lr"] = "--lr";
    CHECK_THAT(run(false, true), Catch::Contains("--lr sets it") && Catch::Contains("its own rates"));
    CHECK(steps == 0);
    config.as_begun = {"lr"};  // of a config that was printed and read again
    CHECK(run(false, true) == "");
    config.sources.clear();
    config.schedule = "cosine";
    config.lr_min = 0.001;
    CHECK_THAT(run(false, true), Catch::Contains("lr_min"));
  }
  SECTION("what the optimizer does not read") {
    config.beta1 = 0.8;
    CHECK(run(false, false) == "");  // the program set it
    config.sources["beta1"] = "--beta1";
    steps = 0;
    CHECK_THAT(run(false, false), Catch::Contains("--beta1: beta1 has no effect here: sgd does not read it"));
    CHECK(steps == 0);
    config.optimizer = "adamw";
    CHECK(run(false, false) == "");
    config.sources["momentum"] = "run.toml:3";
    config.momentum = 0.5;
    CHECK_THAT(run(false, false), Catch::Contains("run.toml:3: momentum has no effect here: adamw does not read it"));
    config.sources["optimizer"] = "--optimizer";  // stronger than the file
    CHECK(run(false, false) == "");
  }
  SECTION("a model that is in memory already") {
    config.deferred_init = true;
    const auto distributes = [&](bool built) {
      return testing::run_program(1, config, [&](Rank& rank) {
        if (built) {
          rank.distribute(torch::nn::Linear(256, 256));
        } else {
          rank.distribute([] { return torch::nn::Linear(256, 256); });
        }
      })[0];
    };
    CHECK_THAT(distributes(true), Catch::Contains("deferred_init") && Catch::Contains("already has its memory"));
    CHECK(distributes(false) == "");
  }
}

TEST_CASE("[F03] a dtype that only shards have is refused by a strategy that keeps parameters whole, with the way on") {
  const std::string strategy =
      GENERATE("ddp", "local_sgd", "diloco", "parameter_server", "pipeline", "tensor_parallel");
  auto config = loop_config(2, strategy);
  if (strategy == "tensor_parallel") config.tensor_plan = "first: column, last: row";
  const auto error_of = [&] {
    return testing::run_program(2, config, [&](Rank& rank) { rank.distribute([] { return SumNet(); }); })[0];
  };
  SECTION("param_dtype") {
    config.param_dtype = "bfloat16";
    CHECK_THAT(error_of(), Catch::Contains("param_dtype: bfloat16 needs sharded parameters, and " + strategy +
                                           " keeps them whole") &&
                               Catch::Contains("--fsdp_mode no_shard for whole float32 masters"));
  }
  SECTION("reduce_dtype") {
    config.reduce_dtype = "float16";
    CHECK_THAT(error_of(),
               Catch::Contains("reduce_dtype: float16 needs sharded parameters") && Catch::Contains("--comm_hook"));
  }
  SECTION("buffer_dtype") {
    config.buffer_dtype = "bfloat16";
    CHECK_THAT(error_of(), Catch::Contains("buffer_dtype: bfloat16 needs sharded parameters"));
  }
}

TEST_CASE("[T03] a step's losses are all sums or all means, and a sum's count is not negative") {
  const auto error_of = [](const std::function<Loss(const at::Tensor& sum, int micro_batch)>& loss) {
    auto config = loop_config(1, "ddp");
    config.grad_accum_steps = 2;
    const auto errors = testing::run_program(1, config, [&](Rank& rank) {
      auto model = rank.distribute([] { return SumNet(); });
      const auto optimizer = rank.make_optimizer(*model);
      for (const auto& batch : rank.loader(std::make_shared<Numbers>())) {
        rank.backward(loss(model->forward(batch.input).square().sum(), static_cast<int>(batch.micro_batch)));
        if (batch.last_of_step) rank.step(*optimizer);
      }
    });
    return errors.at(0);
  };
  CHECK(error_of([](const at::Tensor& sum, int) { return Loss::sum(sum, 12); }) == "");
  CHECK_THAT(error_of([](const at::Tensor& sum, int m) { return m == 0 ? Loss::sum(sum, 12) : Loss(sum); }),
             Catch::Contains("this micro-batch's loss is a mean, the ones before are sums"));
  CHECK_THAT(error_of([](const at::Tensor& sum, int m) { return m == 1 ? Loss::sum(sum, 12) : Loss(sum); }),
             Catch::Contains("this micro-batch's loss is a sum, the ones before are means"));
  CHECK_THAT(error_of([](const at::Tensor& sum, int) { return Loss::sum(sum, -1); }),
             Catch::Contains("the count is -1"));
}

TEST_CASE("[T03] a batch that is not the loader's counts as one sample, and no accuracy is made of it") {
  std::mutex mutex;
  std::vector<double> losses;
  const auto run = [&](double correct) {
    return testing::run_program(2, loop_config(2, "ddp"), [&](Rank& rank) {
      const auto model = rank.distribute([] { return torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)); });
      const auto optimizer = rank.make_optimizer(*model);
      const auto value = model->weight.sum() * 0 + (rank.is_main() ? 1 : 4);
      rank.backward(Loss(value, correct));
      const auto report = rank.step(*optimizer);
      std::lock_guard lock(mutex);
      losses.push_back(report.loss);
    });
  };
  CHECK(run(0) == std::vector<std::string>{"", ""});
  CHECK(losses == std::vector<double>{2.5, 2.5});
  CHECK_THAT(run(3)[0], Catch::Contains("the number of samples in the batch is unknown") &&
                            Catch::Contains("rank.backward(loss, samples, 1)"));
}
