#include "launch/config/data_order.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/loop/run_checkpoints.hpp"
#include "launch/program/job.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

#include <csignal>
#include <map>
#include <mutex>
#include <set>

using namespace troupe;

namespace {

Job job() {
  Job job;
  job.model = [](const Config&) {
    return torch::nn::Sequential(torch::nn::Linear(6, 16), torch::nn::Tanh(), troupe::nn::BatchNorm(16),
                                 torch::nn::Linear(16, 2))
        .ptr();
  };
  job.data = [](const Config&) {
    const auto input = torch::randn({256, 6}, at::detail::createCPUGenerator(3));
    const auto target = (input.sum(1) > 0).to(torch::kLong);
    return Datasets{std::make_shared<TensorDataset>(input.narrow(0, 0, 192), target.narrow(0, 0, 192)),
                    std::make_shared<TensorDataset>(input.narrow(0, 192, 64), target.narrow(0, 192, 64))};
  };
  job.loss = [](torch::nn::Module& model, const Batch& batch, const Config&) {
    const auto scores = model.as<torch::nn::SequentialImpl>()->forward(batch.input);
    return Loss(torch::nn::functional::cross_entropy(scores, batch.target),
                scores.argmax(1).eq(batch.target).sum().item<double>());
  };
  return job;
}

// Runs the framework's own loop on simulated ranks; the weights are in the checkpoint that it leaves. `before_forward`
// is each rank's.
TrainingState train_to_end(
    const std::string& folder, int world_size, Config config,
    const std::function<void(Rank&)>& before_forward = [](Rank&) {}) {
  config.checkpoint_dir = folder;
  config.run_dir = "";
  config.batch_size = 16;
  config.lr = 0.1;
  config.validate_every = 0;
  const auto errors = testing::run_program(world_size, config, [&](Rank& rank) {
    auto mine = job();
    mine.loss = [&, loss = mine.loss](torch::nn::Module& model, const Batch& batch, const Config& settings) {
      before_forward(rank);
      return loss(model, batch, settings);
    };
    train(mine, rank);
  });
  for (const auto& error : errors) {
    if (!error.empty()) throw std::runtime_error(error);
  }
  return load_checkpoint(folder, "latest").state;
}

void check_equal(const TrainingState& a, const TrainingState& b) {
  REQUIRE(a.tensors.size() == b.tensors.size());
  CHECK(a.step == b.step);
  CHECK(a.epoch == b.epoch);
  CHECK(a.step_in_epoch == b.step_in_epoch);
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    INFO(a.tensors[i].first);
    CHECK(a.tensors[i].first == b.tensors[i].first);
    CHECK(a.tensors[i].second.equal(b.tensors[i].second));
  }
}

}  // namespace

TEST_CASE("[C01] a run that stops after step 30 and resumes on the same ranks is bit-equal to the uninterrupted one") {
  const auto world_size = GENERATE(1, 2);
  testing::ScratchDirectory whole, parts;
  Config config;
  config.epochs = 5;  // 12 steps each
  config.optimizer = GENERATE(as<std::string>{}, "sgd", "adamw");
  config.schedule = "cosine";
  const auto uninterrupted = train_to_end(whole.path(), world_size, config);
  CHECK(uninterrupted.step == 60);

  // The run is ended by a signal in the middle of the third epoch, as Ctrl-C would; its schedule is that of the whole
  // run.
  auto first = config;
  first.save_every = 30;
  first.keep_last = 10;
  (void)train_to_end(parts.path(), world_size, first);
  for (const char* later : {"step-00000060"}) std::filesystem::remove_all(parts / later);
  std::filesystem::remove(parts / "latest");
  auto second = config;
  second.resume = "latest";
  const auto resumed = train_to_end(parts.path(), world_size, second);
  check_equal(resumed, uninterrupted);
}

TEST_CASE("[R06] a run that resumes with fewer samples leaves no epoch out, and with more it begins none too early") {
  testing::ScratchDirectory folder;
  // The steps of each epoch that a run takes on so many samples.
  const auto steps_of = [&](std::int64_t samples, std::int64_t epochs, const std::string& resume) {
    Config config;
    config.checkpoint_dir = folder.path();
    config.run_dir = "";
    config.batch_size = 16;
    config.validate_every = 0;
    config.epochs = epochs;
    config.save_every = 7;
    config.keep_last = 10;
    config.resume = resume;
    std::map<std::int64_t, int> steps;
    const auto errors = testing::run_program(1, config, [&](Rank& rank) {
      const auto model = rank.distribute([&] { return job().model(config); });
      const auto optimizer = rank.make_optimizer(*model);
      rank.keep_checkpoints(*optimizer);
      const auto input = torch::zeros({samples, 6});
      for (const auto& batch :
           rank.loader(std::make_shared<TensorDataset>(input, torch::zeros({samples}, torch::kLong)))) {
        rank.backward(job().loss(*model, batch, config));
        rank.step(*optimizer);
        ++steps[batch.epoch];
      }
    });
    for (const auto& error : errors) CHECK(error.empty());
    return steps;
  };
  using Steps = std::map<std::int64_t, int>;
  CHECK((steps_of(160, 1, "") == Steps{{0, 10}}));
  const auto middle = folder / "step-00000007", end = folder / "step-00000010";
  CHECK((steps_of(160, 2, middle) == Steps{{0, 3}, {1, 10}}));
  CHECK((steps_of(32, 3, middle) == Steps{{1, 2}, {2, 2}}));  // the epoch's 2 steps are over
  CHECK((steps_of(320, 2, middle) == Steps{{0, 13}, {1, 20}}));
  CHECK((steps_of(32, 3, end) == Steps{{1, 2}, {2, 2}}));
}

TEST_CASE("[R06] other data than a checkpoint's is told by what is known of both") {
  CHECK(data_change({160, 5}, {32, 6}) == "the data had 160 samples, and now has 32");
  CHECK(data_change({160, 5}, {160, 6}) == "the data is in other files: their names or lengths differ");
  CHECK(data_change({160, 5}, {160, 5}).empty());
  CHECK(data_change({160, 0}, {160, 6}).empty());
  CHECK(data_change({0, 0}, {160, 6}).empty());  // of an older version
}

TEST_CASE("[S04] total_steps is what the run will have done, also when it is resumed, or over") {
  testing::ScratchDirectory folder;
  const auto steps_of = [&](std::int64_t epochs, const std::string& resume) {
    std::int64_t total = 0, taken = 0;
    Config config;
    config.checkpoint_dir = folder.path();
    config.run_dir = "";
    config.batch_size = 16;
    config.epochs = epochs;
    config.resume = resume;
    const auto errors = testing::run_program(1, config, [&](Rank& rank) {
      auto net = rank.distribute([] { return torch::nn::Linear(6, 2); });
      const auto optimizer = rank.make_optimizer(*net);
      rank.keep_checkpoints(*optimizer);
      auto batches = rank.loader(job().data(config).train);
      total = rank.total_steps();
      for (const auto& batch : batches) {
        rank.backward(torch::nn::functional::cross_entropy(net(batch.input), batch.target));
        rank.step(*optimizer);
        ++taken;
      }
    });
    for (const auto& error : errors) CHECK(error.empty());
    return std::pair(total, taken);
  };
  CHECK(steps_of(2, "") == std::pair<std::int64_t, std::int64_t>(24, 24));
  CHECK(steps_of(2, "latest") == std::pair<std::int64_t, std::int64_t>(24, 0));
  CHECK(steps_of(3, "latest") == std::pair<std::int64_t, std::int64_t>(36, 12));
}

TEST_CASE("[S04] a module that a program keeps in eval() stays there while the rest trains, also after a validation") {
  testing::ScratchDirectory folder;
  Config config;
  config.checkpoint_dir = folder.path();
  config.run_dir = "";
  config.batch_size = 64;
  config.epochs = 2;
  config.validate_every = 1;
  auto mine = job();
  mine.model = [](const Config& settings) {
    auto model = job().model(settings);
    model->children()[2]->eval();
    return model;
  };
  std::map<std::string, std::set<bool>> trains;
  mine.loss = [&, loss = mine.loss](torch::nn::Module& model, const Batch& batch, const Config& settings) {
    const std::string when = at::GradMode::is_enabled() ? "training: " : "validation: ";
    for (const auto i : {0, 2}) trains[when + std::to_string(i)].insert(model.children()[i]->is_training());
    return loss(model, batch, settings);
  };
  const auto errors = testing::run_program(1, config, [&](Rank& rank) { train(mine, rank); });
  CHECK(errors == std::vector<std::string>{""});
  CHECK(
      (trains ==
       std::map<std::string, std::set<bool>>{
           {"training: 0", {true}}, {"training: 2", {false}}, {"validation: 0", {false}}, {"validation: 2", {false}}}));
}

TEST_CASE(
    "[L07] a validation ends on all ranks after the batch in which one is asked to stop, and the state is saved") {
  testing::ScratchDirectory folder;
  Config config;
  config.checkpoint_dir = folder.path();
  config.run_dir = "";
  config.batch_size = 16;
  config.epochs = 3;
  config.validate_every = 1;
  config.strategy = GENERATE(as<std::string>{}, "ddp", "fsdp");
  std::mutex one_at_a_time;
  std::map<int, int> validated;  // batches, of four on each rank
  const auto errors = testing::run_program(2, config, [&](Rank& rank) {
    auto mine = job();
    mine.loss = [&, loss = mine.loss](torch::nn::Module& model, const Batch& batch, const Config& settings) {
      if (!model.is_training()) {
        std::lock_guard lock(one_at_a_time);
        if (++validated[rank.rank()] == 2 && rank.rank() == 1)
          system_of(rank).compute().services().status->stop_signal.store(SIGTERM);
      }
      return loss(model, batch, settings);
    };
    train(mine, rank);
  });
  CHECK(errors == std::vector<std::string>{"", ""});
  CHECK((validated == std::map<int, int>{{0, 2}, {1, 2}}));
  const auto state = load_checkpoint(folder.path(), "latest").state;
  CHECK(state.step == 12);  // the epoch: no step follows
}

TEST_CASE("[S04] a checkpoint resumes at another world size, in the middle of an epoch, with the same samples") {
  testing::ScratchDirectory one, other;
  Config config;
  config.epochs = 2;
  config.save_every = 7;
  config.keep_last = 10;
  const auto whole = train_to_end(one.path(), 2, config);
  std::filesystem::copy(one / "step-00000007", other / "step-00000007", std::filesystem::copy_options::recursive);
  config.resume = "latest";
  config.sync_batchnorm = false;
  const auto resumed = train_to_end(other.path(), 1, config);
  CHECK(resumed.step == whole.step);
  CHECK(resumed.epoch == whole.epoch);
}

TEST_CASE(
    "[S04] a run that resumes with another order of its data in the middle of an epoch is told so, and not at an "
    "epoch's end") {
  testing::ScratchDirectory folder;
  Config config;
  config.epochs = 1;
  config.save_every = 7;
  config.keep_last = 10;
  (void)train_to_end(folder.path(), 1, config);
  const auto told = [&](const std::string& checkpoint, std::int64_t batch_size) {
    auto other = config;
    other.checkpoint_dir = folder.path();
    other.run_dir = "";
    other.batch_size = batch_size;
    other.resume = checkpoint;
    std::string log;
    const auto errors = testing::run_program(1, other, [&](Rank& rank) {
      auto model = rank.distribute([&] { return job().model(other); });
      const auto optimizer = rank.make_optimizer(*model);
      RunCheckpoints checkpoints(rank, *optimizer);
      (void)checkpoints.resume(other.resume, [&](const std::string& line) { log += line + "\n"; });
    });
    for (const auto& error : errors) CHECK(error.empty());
    return log;
  };
  const auto middle = folder / "step-00000007", end = folder / "step-00000012";
  CHECK_THAT(told(middle, 8), Catch::Contains("resume from") && !Catch::Contains("warning"));
  CHECK_THAT(told(middle, 32), Catch::Contains("16 samples of epoch 0 come again"));
  CHECK_THAT(told(middle, 16), Catch::Contains("resume from") && !Catch::Contains("warning"));
  CHECK_THAT(told(end, 8), Catch::Contains("resume from") && !Catch::Contains("warning"));
}

TEST_CASE("[S04] what of a checkpoint's data order changed is told by name, with both values") {
  Config config;
  const auto saved = config_to_json(config);
  CHECK(data_order_changes(saved, config).empty());
  config.lr = 3;  // of no matter to the order
  CHECK(data_order_changes(saved, config).empty());
  config.batch_size = 32;
  config.shuffle_buffer = 7;
  CHECK((data_order_changes(saved, config) == std::vector<std::string>{"shuffle_buffer was 1024, is 7"}));
  config = {};
  config.seed = 9;
  config.drop_last = false;
  config.shuffle = false;
  CHECK((data_order_changes(saved, config) ==
         std::vector<std::string>{"shuffle was true, is false", "seed was 42, is 9", "drop_last was true, is false"}));
  for (const char* other : {"", "{}", "[]", "{\"batch_size\":", "7"}) CHECK(data_order_changes(other, config).empty());
}

TEST_CASE("[S04] the remedy for another model names the settings that were others, and only those of a model") {
  Config config;
  config.declare("width", std::int64_t{32}, "of the probe");
  const auto saved = config_to_json(config);
  config.lr = 3;
  CHECK_THAT(remedy_for_model(saved, config), Catch::StartsWith("resume with the program that saved it, or start"));
  set_config_value(config, "width", "64", "--width");
  CHECK_THAT(remedy_for_model(saved, config), Catch::StartsWith("width was 32, is 64: resume with the former value"));
  CHECK_THAT(remedy_for_model("", config), Catch::StartsWith("resume with the program"));
}

TEST_CASE("[S04] with another batch size an epoch goes on at the same sample") {
  Config config;
  const auto saved = config_to_json(config);  // batch_size 64
  const auto step_with = [&](std::int64_t batch_size, std::int64_t step, const std::string& before) {
    config.batch_size = batch_size;
    const auto again = same_sample(before, config, step);
    return std::pair(step, again);
  };
  CHECK((step_with(32, 3, saved) == std::pair<std::int64_t, std::int64_t>(6, 0)));
  CHECK((step_with(64, 3, saved) == std::pair<std::int64_t, std::int64_t>(3, 0)));
  CHECK((step_with(128, 3, saved) == std::pair<std::int64_t, std::int64_t>(1, 64)));
  for (const char* other : {"", "{}", R"({"batch_size": "x"})", R"({"batch_size": 0})", R"({"batch_size": 1e30})"})
    CHECK((step_with(32, 3, other) == std::pair<std::int64_t, std::int64_t>(3, 0)));
  CHECK((step_with(32, std::int64_t{1} << 62, saved).first == std::int64_t{1} << 62));
}

namespace {

// The rows of job(), as if they lay in files.
class ShardedRows final : public Dataset {
 public:
  explicit ShardedRows(std::shared_ptr<const Dataset> rows) : rows_(std::move(rows)) {}
  std::int64_t size() const override { return rows_->size(); }
  Example get(std::int64_t index, const SampleContext& context) const override { return rows_->get(index, context); }
  std::vector<std::int64_t> shard_sizes() const override { return {50, 3, 77, 62}; }

 private:
  std::shared_ptr<const Dataset> rows_;
};

using SamplesByStep =
    std::map<std::pair<std::int64_t, std::int64_t>, std::multiset<std::int64_t>>;  // (epoch, step of it): all ranks'

SamplesByStep samples_of_run(const std::string& folder, int world_size, Config config) {
  config.checkpoint_dir = folder;
  config.run_dir = "";
  config.batch_size = 16;
  config.shuffle_buffer = 20;
  config.validate_every = 0;
  SamplesByStep samples;
  std::mutex mutex;
  const auto errors = testing::run_program(world_size, config, [&](Rank& rank) {
    auto mine = job();
    mine.data = [](const Config& settings) {
      return Datasets{std::make_shared<ShardedRows>(job().data(settings).train), nullptr};
    };
    mine.loss = [&, loss = mine.loss](torch::nn::Module& model, const Batch& batch, const Config& settings) {
      std::lock_guard lock(mutex);
      const auto index = batch.index.contiguous();
      samples[{batch.epoch, batch.step}].insert(index.const_data_ptr<std::int64_t>(),
                                                index.const_data_ptr<std::int64_t>() + index.numel());
      return loss(model, batch, settings);
    };
    train(mine, rank);
  });
  for (const auto& error : errors) CHECK(error.empty());
  return samples;
}

}  // namespace

TEST_CASE(
    "[S04] data in shards resumes in the middle of an epoch at another world size, with the samples that were to "
    "come") {
  testing::ScratchDirectory one, other;
  Config config;
  config.epochs = 2;
  config.save_every = 7;
  config.keep_last = 10;
  auto whole = samples_of_run(one.path(), 2, config);
  CHECK(whole.size() == 24);
  std::filesystem::copy(one / "step-00000007", other / "step-00000007", std::filesystem::copy_options::recursive);
  config.resume = "latest";
  const auto resumed = samples_of_run(other.path(), 4, config);
  std::erase_if(whole, [](const auto& step) { return step.first.first == 0 && step.first.second < 7; });
  CHECK((resumed == whole));
}

TEST_CASE("[C03] a corrupt checkpoint is refused on resume and the one before is used") {
  testing::ScratchDirectory folder;
  Config config;
  config.epochs = 2;
  config.save_every = 12;
  config.keep_last = 5;
  const auto whole = train_to_end(folder.path(), 2, config);
  CHECK(whole.step == 24);
  std::ofstream(folder / "step-00000024/rank-00000.safetensors", std::ios::binary | std::ios::in | std::ios::out)
          .seekp(500)
      << "flip";
  config.resume = "latest";
  check_equal(train_to_end(folder.path(), 2, config), whole);  // from step 12 again to 24
  config.resume = folder / "step-00000099";
  CHECK_THROWS_WITH(train_to_end(folder.path(), 2, config), Catch::Contains("step-00000099"));
}

TEST_CASE("[C02] a checkpoint that finds the disk full is reported, and the last one is tried once more") {
  testing::ScratchDirectory whole, hurt;
  Config config;
  config.epochs = 2;
  config.save_every = 6;
  config.keep_last = 10;
  const auto undisturbed = train_to_end(whole.path(), 2, config);
  const auto fill_disk = [](Rank& rank) {
    const auto step = rank.steps_done();
    if (rank.rank() != 1 || (step != 8 && step != 20)) return;  // before the saves of steps 12 and 24, the last
    const auto supervisor = caf::actor_cast<caf::actor>(system_of(rank).supervisor());
    caf::anon_send(supervisor, InjectFault{ChaosKind::disk, 0});
    // The one after it shows that it has arrived.
    caf::anon_send(supervisor, InjectFault{ChaosKind::nan, 0});
    auto& poisoned = system_of(rank).compute().services().status->poisoned;
    while (!poisoned) std::this_thread::yield();
    poisoned = false;
  };
  check_equal(train_to_end(hurt.path(), 2, config, fill_disk), undisturbed);
  for (const auto* step : {"step-00000006", "step-00000018", "step-00000024"})
    CHECK(std::filesystem::exists(hurt / step));
  CHECK_FALSE(std::filesystem::exists(hurt / "step-00000012"));
}

TEST_CASE("[T10] the same job runs on one rank with the same global batch") {
  testing::ScratchDirectory one, two;
  Config config;
  config.epochs = 1;
  config.sync_batchnorm = true;
  const auto alone = train_to_end(one.path(), 1, config);
  const auto pair = train_to_end(two.path(), 2, config);
  for (std::size_t i = 0; i < alone.tensors.size(); ++i) {
    INFO(alone.tensors[i].first);
    CHECK(alone.tensors[i].second.to(at::kDouble).allclose(pair.tensors[i].second.to(at::kDouble), 1e-3, 1e-3));
  }
}
