// Jobs on a cluster in a test, hurt at places that the test names.
#include "launch/testing/cluster.hpp"

#include <atomic>
#include <cstdlib>

#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tests/catch.hpp"
#include "tests/launch/testing/points.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

const Settings kShort{.max_steps = 12, .epochs = 4, .batch_size = 24};

class LongRows : public troupe::Dataset {
 public:
  std::int64_t size() const override { return 64; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    return {torch::full({3072}, static_cast<float>(index)), torch::tensor(index % 2)};
  }
};

}  // namespace

TEST_CASE("[U01] a rank that is killed at the vote changes no bit") {
  Cluster cluster({.hosts = 2, .ranks_per_host = 2});
  cluster.kill(Rank{1}, At{"vote", 7});
  const auto run = cluster.train(points(), kShort), undisturbed = cluster.undisturbed(points(), kShort);
  INFO(run.error());
  CHECK(run.exit_code() == 0);
  CHECK(run.weights() == undisturbed.weights());
  CHECK(run.losses() == undisturbed.losses());
  CHECK(run.steps() == undisturbed.steps());
  CHECK(run.steps().size() == 12);
  CHECK(undisturbed.memberships().size() == 1);
  CHECK(undisturbed.time() < 1s);  // of the cluster's clock: a rank that comes wakes those that wait for it
  REQUIRE(run.memberships().size() == 2);
  CHECK(run.memberships()[1].slots == std::vector<int>{0, 1, 2, 3});
  CHECK_FALSE(run.log(Rank{0}).empty());
  CHECK_FALSE(run.coordinator_log().empty());
}

TEST_CASE("[D13] who waits in a program's group for a rank that is lost goes on at once") {
  auto job = points();
  job.callbacks = [](troupe::Rank& rank, torch::nn::Module&) {
    rank.between_steps([&rank](std::int64_t steps_done) {
      const auto pair = rank.split(rank.rank() / 2, rank.rank());
      troupe::fault_point("stage", steps_done);
      const auto sum = torch::tensor({1.0});
      pair->all_reduce(sum, troupe::ReduceOp::sum, "ranks of a pair");
      if (sum.item<double>() != 2) throw std::runtime_error("another sum");
      CHECK(rank.split(-1, 0) == nullptr);
    });
    return troupe::Callbacks();
  };
  Cluster cluster({.ranks_per_host = 4});
  cluster.kill(Rank{1}, At{"stage", 7});
  const auto run = cluster.train(job, kShort);
  INFO(run.error());
  CHECK(run.exit_code() == 0);
  CHECK(run.missed().empty());
  CHECK(run.weights() == cluster.undisturbed(job, kShort).weights());
  CHECK(run.memberships().size() == 2);
  CHECK(run.time() < 10s);  // of the cluster's clock; collective_timeout is 60 s
}

TEST_CASE("[L04] what init_from names is trained also if rank 0 is lost before the others have the model") {
  const ScratchDirectory folder;
  const auto file = folder / "m.safetensors";
  Cluster cluster({.ranks_per_host = 3});
  troupe::save_safetensors(file, cluster.undisturbed(points(), kShort).weights().tensors());
  auto settings = kShort;
  settings.more = {{"init_from", file}};
  const auto undisturbed = cluster.undisturbed(points(), settings);
  CHECK_FALSE(undisturbed.weights() == cluster.undisturbed(points(), kShort).weights());
  auto job = points();
  job.model = [model = job.model](const troupe::Config& config) {
    troupe::fault_point("stage", 0);
    return model(config);
  };
  const std::string place = GENERATE("stage", "distribute");
  INFO(place);
  cluster.kill(Rank{0}, At{place, 0});
  const auto run = cluster.train(job, settings);
  INFO(run.error());
  CHECK(run.exit_code() == 0);
  CHECK(run.missed().empty());
  CHECK(run.weights() == undisturbed.weights());
}

// With OMP_NUM_THREADS above 1: LibTorch's number of threads is each thread's own.
TEST_CASE("[U01] no rank of a cluster shares its products out over threads") {
  auto job = points();
  job.model = [](const troupe::Config&) {
    return std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(3072, 128), torch::nn::Linear(128, 2));
  };
  job.data = [](const troupe::Config&) { return troupe::Datasets{std::make_shared<LongRows>(), nullptr}; };
  CHECK(Cluster({.ranks_per_host = 2}).train(job, {.max_steps = 2, .batch_size = 8}).exit_code() == 0);
}

TEST_CASE("[U01] the same cluster goes the same way each time") {
  Cluster cluster({.ranks_per_host = 3, .seed = 4});
  cluster.kill(Rank{2}, At{"backward", 3}).stop(Rank{0}, At{"collective", 5}, 2s);
  (void)cluster.train(points(), kShort);  // makes what is made once in a process
  const auto run = cluster.train(points(), kShort), again = cluster.train(points(), kShort);
  CHECK(run.exit_code() == 0);
  CHECK(run.fingerprint() == again.fingerprint());
  CHECK(run.time() == again.time());
  CHECK(run.coordinator_log() == again.coordinator_log());
  Cluster hosts({.hosts = 3, .ranks_per_host = 1, .seed = 4});
  hosts.cut(Host{0}, Host{2}, At{"vote", 3}, 5s).delay(Message{.to = Rank{1}, .after = At{"data", 2}}, 2s);
  (void)hosts.train(points(), kShort);
  const auto cut = hosts.train(points(), kShort), cut_again = hosts.train(points(), kShort);
  CHECK(cut.exit_code() == 0);
  CHECK(cut.fingerprint() == cut_again.fingerprint());
  CHECK(cut.messages().size() == cut_again.messages().size());
}

TEST_CASE("[U01] a host's rank that leaves, a spare, and threads all at once") {
  Cluster leaving({.ranks_per_host = 3});
  leaving.leave(Rank{1}, At{"forward", 4});
  const auto left = leaving.train(points(), kShort);
  CHECK(left.exit_code() == 0);
  REQUIRE(left.memberships().size() == 2);
  CHECK(left.memberships()[1].slots == std::vector<int>{0, 2});
  CHECK(left.steps().size() == 12);
  Cluster parallel({.ranks_per_host = 2, .spares = 1, .parallel = true});
  parallel.kill(Rank{0}, At{"reduced", 2});
  const auto run = parallel.train(points(), kShort);
  CHECK(run.exit_code() == 0);
  CHECK(run.weights() == parallel.undisturbed(points(), kShort).weights());
  CHECK(run.fingerprint() == 0);
}

TEST_CASE("[U01] a slow rank holds the others up on the cluster's clock, and is named") {
  Cluster cluster({.ranks_per_host = 2});
  cluster.slow(Rank{1}, Times{51});
  Settings settings{.max_steps = 24, .epochs = 6, .batch_size = 24};
  const auto run = cluster.train(points(), settings);
  CHECK(run.exit_code() == 0);
  CHECK(run.time() >= 24 * 500ms);
  std::string log;
  for (const auto& line : run.log(Rank{0})) log += line + "\n";
  CHECK_THAT(log, Catch::Contains("rank 1") && Catch::Contains("slow"));
  CHECK(run.weights() == cluster.undisturbed(points(), settings).weights());
}

TEST_CASE("[U01] a job that has lost its state ends with the verdict's code, also if a rank comes later") {
  int lost = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Cluster cluster({.ranks_per_host = 2, .seed = seed});
    cluster.kill(Rank{1}, At{"committed", 5}).kill(Rank{0}, At{"data", 6});
    const auto run = cluster.train(points(), kShort);
    INFO(seed << ": " << run.error());
    CHECK((run.exit_code() == 0 || run.exit_code() == 75));
    if (run.exit_code() == 0) continue;
    ++lost;
    CHECK_THAT(run.error(), Catch::Contains("no rank of generation 1 is left"));
  }
  CHECK(lost > 0);
}

TEST_CASE("[U01] what a cluster or a job does not have is refused by its name") {
  Cluster cluster({.ranks_per_host = 2});
  CHECK_THROWS_WITH(cluster.kill(Rank{2}, At{"vote", 1}), Catch::Contains("Rank{2}: the cluster has 2 ranks"));
  CHECK_THROWS_WITH(cluster.kill(Rank{1}, At{"voet", 1}), Catch::Contains("'voet' is not a fault point"));
  CHECK_THROWS_WITH(cluster.kill(Rank{1}, At{"journal", 1}), Catch::Contains("the coordinator's"));
  CHECK_THROWS_WITH(cluster.slow(Rank{1}, Times{0.5}), Catch::Contains("Times: a slow rank"));
  CHECK_THROWS_WITH(cluster.train(points(), {.more = {{"epochs", "2"}}}), Catch::Contains("a field of Settings"));
  CHECK_THROWS_WITH(cluster.train(points(), {.more = {{"save_every", "2"}}}), Catch::Contains("no checkpoint_dir"));
  ::setenv("TROUPE_LR", "0.5", 1);
  CHECK_THROWS_WITH(cluster.train(points()), Catch::Contains("TROUPE_LR: it would change"));
  ::unsetenv("TROUPE_LR");
  CHECK_THROWS_WITH(cluster.train(points(), {.more = {{"lrr", "1"}}}), Catch::Contains("did you mean lr?"));
  CHECK_THROWS_WITH(cluster.train(points(), {.more = {{"ranks", "3"}}}), Catch::Contains("ClusterOptions"));
  CHECK_THROWS_WITH(cluster.train(points(), {.more = {{"backend", "gloo"}}}), Catch::Contains(".parallel = true"));
  const auto run = cluster.train(points(), {.strategy = "dpp"});
  CHECK(run.exit_code() == 2);
  CHECK_THAT(run.error(), Catch::Contains("there is no strategy 'dpp'"));
  CHECK_THROWS_WITH(run.weights(), Catch::Contains("there is no strategy 'dpp'"));  // two failed runs are not equal
  cluster.kill(Rank{1}, At{"vote", 12});
  CHECK_THROWS_WITH(
      cluster.train(points(), kShort),
      Catch::Contains("cluster.kill(Rank{1}, At{\"vote\", 12});: it never came") && Catch::Contains("the job made 12"));
  CHECK_THROWS_WITH(cluster.train(troupe::Job{}), Catch::Contains("the job has no model"));
}

TEST_CASE("[U01] TROUPE_FAULT kills simulated ranks, and what it can't do to them is refused in a line") {
  std::atomic<int> lives{0};
  auto job = points();
  job.model = [&, model = job.model](const troupe::Config& config) {
    ++lives;
    return model(config);
  };
  const auto run = [&](const char* fault) {
    ::setenv("TROUPE_FAULT", fault, 1);
    std::vector<std::string> words{"test", "--ranks",   "2", "--batch_size", "24", "--max_steps",
                                   "8",    "--run_dir", "",  "--save_every", "-1"};
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    const int code = troupe::run(job, static_cast<int>(arguments.size()), arguments.data());
    ::unsetenv("TROUPE_FAULT");
    return code;
  };
  CHECK(run("slot=1,step=3,at=forward") == 0);
  CHECK(lives == 3);
  for (const char* wrong : {"slot=2,step=3,at=forward", "slot=-1,step=3,at=forward",
                            "slot=coordinator,step=0,at=journal", "slot=1,step=3,at=voet", "slot=1,step=x,at=vote",
                            "slot=1,step=3", "slot=1,step=3,at=vote,signal=19", "slott=1"}) {
    INFO(wrong);
    CHECK(run(wrong) == 2);
  }
}

TEST_CASE("[U01] explore finds nothing in ddp, and finds, shrinks and prints what breaks a job") {
  Cluster cluster({.ranks_per_host = 2});
  const auto sound = cluster.explore(points(), {.runs = 20, .settings = kShort});
  INFO(sound.test);
  CHECK(sound.wrong.empty());
  CHECK(sound.runs == 20);
  // A job that counts calls of its loss in the process, as a program would that takes a rank's life for the job's.
  auto job = points();
  job.loss = [](torch::nn::Module& model, const troupe::Batch& batch, const troupe::Config&) {
    thread_local int calls = 0;
    const auto scores = dynamic_cast<torch::nn::SequentialImpl&>(model).forward(batch.input);
    return troupe::Loss(torch::nn::functional::cross_entropy(scores, batch.target) * (1.0 / ++calls));
  };
  const auto broken = cluster.explore(job, {.runs = 50, .settings = kShort});
  INFO(broken.test);
  CHECK_THAT(broken.wrong, Catch::Contains("its weights are not the undisturbed job's"));
  REQUIRE(broken.faults.size() == 1);
  CHECK_THAT(broken.test, Catch::Contains(broken.faults[0].to_code()));
  auto options = ClusterOptions{.ranks_per_host = 2, .seed = broken.seed};
  Cluster again(options);
  again.add(broken.faults[0]);
  CHECK_FALSE(again.train(job, kShort).weights() == again.undisturbed(job, kShort).weights());
}
