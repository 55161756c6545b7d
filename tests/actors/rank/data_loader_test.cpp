#include "actors/rank/data_loader.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

#include "tensor_io/data/collate.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t size, std::int64_t broken = -1) : size_(size), broken_(broken) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index, const SampleContext&) const override {
    if (index == broken_) throw std::runtime_error("sample " + std::to_string(index) + " is rotten");
    return {at::full({1}, static_cast<double>(index)), at::scalar_tensor(static_cast<double>(index), at::kLong)};
  }

 private:
  std::int64_t size_, broken_;
};

struct Loaded {
  std::vector<std::shared_ptr<const Batch>> batches;
  std::optional<ErrorReport> failed;
  bool ended = false;
};

// Takes everything a loader has, one credit at a time.
Loaded drain(DataLoaderOptions options, std::size_t limit = 1000) {
  caf::actor_system_config config;
  caf::actor_system system(config);
  caf::scoped_actor self(system);
  RankSupervisorOptions supervisor;
  supervisor.status = std::make_shared<RankStatus>();
  options.supervisor = system.spawn(rank_supervisor, supervisor);
  options.consumer = caf::actor(self);
  auto loader = system.spawn<caf::detached>(data_loader, options);
  Loaded loaded;
  caf::anon_send(loader, GrantBatches{1});
  while (!loaded.ended && !loaded.failed && loaded.batches.size() < limit) {
    self->receive(
        [&](const BatchLoaded& message) {
          loaded.batches.push_back(message.batch);
          caf::anon_send(loader, GrantBatches{1});
        },
        [&](const DataEnded&) { loaded.ended = true; },
        [&](const RankFailed& failed) { loaded.failed = failed.report; },
        caf::after(std::chrono::seconds(20)) >> [&] { FAIL("the loader is silent"); });
  }
  caf::anon_send_exit(loader, caf::exit_reason::user_shutdown);
  self->wait_for(loader);
  caf::anon_send_exit(options.supervisor, caf::exit_reason::user_shutdown);
  return loaded;
}

DataLoaderOptions options(std::int64_t workers) {
  DataLoaderOptions o;
  o.dataset = std::make_shared<Numbers>(40);
  o.sampler.dataset_size = 40;
  o.sampler.batch_size = 8;
  o.sampler.micro_batches = 2;
  o.epochs = 2;
  o.num_workers = workers;
  return o;
}

}  // namespace

TEST_CASE("[S03] batches come in order, whole epochs of them, with any number of workers") {
  const auto loaded = drain(options(GENERATE(0, 1, 3)));
  REQUIRE(loaded.ended);
  REQUIRE(loaded.batches.size() == 20);
  for (std::size_t i = 0; i < 20; ++i) {
    CHECK(loaded.batches[i]->epoch == static_cast<std::int64_t>(i / 10));
    CHECK(loaded.batches[i]->step == static_cast<std::int64_t>(i % 10 / 2));
    CHECK(loaded.batches[i]->micro_batch == static_cast<std::int64_t>(i % 2));
    CHECK(loaded.batches[i]->last_of_step == (i % 2 == 1));
    CHECK(loaded.batches[i]->last_of_epoch == (i % 10 == 9));
    CHECK(loaded.batches[i]->numel() == 4);
  }
}

TEST_CASE("[S03] a quick data set's batches are made where they are asked for, the same ones in the same order") {
  struct Quick : Numbers {
    using Numbers::Numbers;
    bool quick(std::int64_t samples) const override { return samples <= 4; }
  };
  auto o = options(2);
  CHECK_FALSE(DirectLoader::suits(o));
  o.dataset = std::make_shared<Quick>(40);
  CHECK(DirectLoader::suits(o));  // 8 samples in two micro-batches
  o.sampler.world_size = 2;
  CHECK(DirectLoader::suits(o));
  o.sampler.world_size = 1;
  o.sampler.batch_size = 20;
  CHECK_FALSE(DirectLoader::suits(o));
  o = options(2);
  o.start = {0, 3};
  o.max_steps = 4;
  const auto by_actor = drain(o);
  DirectLoader loader(o);
  for (const auto& batch : by_actor.batches) {
    const auto made = loader.next();
    REQUIRE((made && made->batch));
    CHECK(made->batch->index.equal(batch->index));
    CHECK(made->batch->input.equal(batch->input));
    CHECK(made->batch->epoch == batch->epoch);
    CHECK(made->batch->step == batch->step);
    CHECK(made->batch->micro_batch == batch->micro_batch);
    CHECK(made->batch->last_of_step == batch->last_of_step);
  }
  CHECK(by_actor.batches.size() == 8);
  CHECK_FALSE(loader.next());
}

TEST_CASE("[S03] workers and the asking thread make the same padded batches of named tensors, counted by samples") {
  struct Sentences final : Numbers {
    using Numbers::Numbers;
    Example get(std::int64_t index, const SampleContext&) const override {
      return {.named = {{"input_ids", at::full({index % 5}, index, at::kLong)}}};
    }
    Batch collate(const std::vector<Example>& examples) const override { return pad_to_longest(examples); }
  };
  auto o = options(GENERATE(0, 3));
  o.dataset = std::make_shared<Sentences>(40);
  const auto loaded = drain(o);
  REQUIRE(loaded.batches.size() == 20);
  DirectLoader loader(o);
  for (const auto& batch : loaded.batches) {
    const auto made = loader.next();
    REQUIRE((made && made->batch));
    CHECK(batch->numel() == 4);
    CHECK(batch->counted == 4);
    for (const char* name : {"input_ids", "attention_mask"}) CHECK((*made->batch)[name].equal((*batch)[name]));
    CHECK((*batch)["attention_mask"].sum(1).equal(batch->index % 5));
    CHECK((*batch)["input_ids"].sum(1).equal(batch->index * (batch->index % 5)));
  }
}

TEST_CASE("[S03] samples that can't be stacked end the loader with step, data set, field and sample") {
  struct Sentences final : Numbers {
    using Numbers::Numbers;
    Example get(std::int64_t index, const SampleContext&) const override { return {at::full({1 + index}, 1)}; }
    std::string name() const override { return "sentences"; }
  };
  auto o = options(1);
  o.sampler.shuffle = false;
  o.dataset = std::make_shared<Sentences>(40);
  const auto loaded = drain(o);
  REQUIRE(loaded.failed);
  CHECK(loaded.failed->code == ErrorCode::usage);
  CHECK_THAT(loaded.failed->to_string(),
             Catch::Contains("batch of step 0 in epoch 0 of sentences: sentences: field input: sample 1 has the shape "
                             "[2], sample 0 has [1]; for sequences of unequal lengths let collate return"));
}

TEST_CASE("[S04] a loader that starts at a cursor gives what the uninterrupted one gives from there") {
  const auto whole = drain(options(2));
  auto rest = options(1);
  rest.start = {0, 3};
  const auto resumed = drain(rest);
  REQUIRE(resumed.batches.size() == 14);
  for (std::size_t i = 0; i < 14; ++i) CHECK(resumed.batches[i]->index.equal(whole.batches[i + 6]->index));
}

TEST_CASE("[S03] a loader ends after max_steps and stops in the middle without a trace") {
  auto few = options(2);
  few.max_steps = 3;
  CHECK(drain(few).batches.size() == 6);
  CHECK(drain(options(3), 5).batches.size() == 5);
}

TEST_CASE("[S03] a loader is never further ahead than prefetch and credits allow") {
  struct Counting : Numbers {
    using Numbers::Numbers;
    Example get(std::int64_t index, const SampleContext& context) const override {
      ++loaded;
      return Numbers::get(index, context);
    }
    mutable std::atomic<int> loaded{0};
  };
  auto o = options(0);
  auto dataset = std::make_shared<Counting>(40);
  o.dataset = dataset;
  o.prefetch = 2;
  (void)drain(o, 1);  // one batch taken, one more credit: at most 1 + 1 + 2 were loaded
  CHECK(dataset->loaded <= 4 * 4);
}

TEST_CASE("[T06] a data set that throws is reported with rank, actor, batch and cause, in its turn") {
  auto o = options(2);
  o.rank = 3;
  o.sampler.shuffle = false;
  o.dataset = std::make_shared<Numbers>(40, 9);  // in the third micro-batch
  const auto loaded = drain(o);
  CHECK(loaded.batches.size() == 2);
  REQUIRE(loaded.failed);
  CHECK(loaded.failed->rank == 3);
  CHECK(loaded.failed->actor == "data loader");
  CHECK_THAT(loaded.failed->to_string(), Catch::Contains("step 1 in epoch 0") && Catch::Contains("sample 9 is rotten"));
}
