// Metrics, state and callbacks of the program's own, on ranks that are lost, healed, and taken back to a snapshot.
#include <csignal>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "actors/rank/rank_supervisor.hpp"
#include "launch/testing/cluster.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tests/catch.hpp"
#include "tests/launch/testing/points.hpp"
#include "tests/share.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

struct Counter {
  std::int64_t steps = 0, epochs = 0, validations = 0;
  std::vector<std::int64_t> order;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(steps, epochs, validations, order);
  }
};

// What each rank's callbacks saw; the newest of a step counts.
struct Seen {
  std::mutex mutex;
  std::map<std::int64_t, std::map<std::string, double>> logged;  // by step
  std::map<int, std::string> states;                             // by rank, after its last step
  std::map<std::int64_t, std::map<std::string, double>> validated;
  std::vector<std::string> saved;
};

struct Desk {
  Counter counter;
  at::Tensor mean = at::zeros({}, at::kDouble);  // a moving one: it depends on each step's order
  std::vector<at::Tensor> history;
  std::string text() const {
    std::string order;
    for (const auto step : counter.order) order += " " + std::to_string(step);
    return std::to_string(counter.steps) + " " + std::to_string(counter.epochs) + " " +
           std::to_string(counter.validations) + ":" + order + " | " + std::to_string(mean.item<double>()) + " | " +
           std::to_string(history.size());
  }
};

troupe::Job desk_job(const std::shared_ptr<Seen>& seen, std::function<bool(const Desk&)> enough = {}) {
  auto job = points();
  job.data = [](const troupe::Config&) {
    return troupe::Datasets{std::make_shared<Points>(), std::make_shared<Points>()};
  };
  job.loss = [](torch::nn::Module& model, const troupe::Batch& batch, const troupe::Config&) {
    const auto scores = dynamic_cast<torch::nn::SequentialImpl&>(model).forward(batch.input);
    auto& rank = troupe::this_rank();
    rank.log("accuracy/own", scores.argmax(1).eq(batch.target).to(at::kDouble).mean());
    rank.log("samples", static_cast<double>(batch.numel()), troupe::Reduce::sum);
    rank.log("largest", batch.input.max().item<double>(), troupe::Reduce::max);
    rank.log("smallest", batch.input.min().item<double>(), troupe::Reduce::min);
    rank.log("weighed", batch.target.to(at::kDouble).sum() / 7.0, troupe::Reduce::mean, 7.0);
    return troupe::Loss(torch::nn::functional::cross_entropy(scores, batch.target),
                        scores.argmax(1).eq(batch.target).sum());
  };
  job.callbacks = [seen, enough](troupe::Rank& rank, torch::nn::Module&) {
    auto desk = std::make_shared<Desk>();
    rank.state("counter", desk->counter);
    rank.state("mean", desk->mean);
    rank.state("history", desk->history);
    troupe::Callbacks callbacks;
    callbacks.on_step = [desk, seen, &rank](const troupe::StepReport& report) {
      ++desk->counter.steps;
      desk->counter.order.push_back(report.step);
      desk->mean.mul_(0.5).add_(report.loss);
      if (report.step % 3 == 0) desk->history.push_back(at::full({2}, report.loss));
      const std::lock_guard lock(seen->mutex);
      seen->states[rank.rank()] = desk->text();
      for (const auto& [name, value] : report.logged.results()) seen->logged[report.step][name] = value;
    };
    callbacks.on_epoch = [desk](std::int64_t epoch) {
      ++desk->counter.epochs;
      desk->counter.order.push_back(-1 - epoch);
    };
    callbacks.on_validation = [desk, seen, &rank](const troupe::ValidationReport& report) {
      ++desk->counter.validations;
      desk->mean.add_(report.loss);
      auto ranks = at::ones({1}, at::kDouble);
      rank.all_reduce(ranks, troupe::ReduceOp::sum, "on_validation");  // a rank that is lost before it takes all back
      const std::lock_guard lock(seen->mutex);
      for (const auto& [name, value] : report.logged.results()) seen->validated[report.step][name] = value;
    };
    callbacks.on_save = [seen](const std::string& path) {
      const std::lock_guard lock(seen->mutex);
      seen->saved.push_back(path);
    };
    if (enough) callbacks.should_stop = [desk, enough] { return enough(*desk); };
    return callbacks;
  };
  return job;
}

const Settings kDesk{.max_steps = 12, .epochs = 3, .batch_size = 24};

std::shared_ptr<Seen> train(const Cluster& cluster, const Settings& settings, bool must_end_well = true) {
  auto seen = std::make_shared<Seen>();
  const auto run = cluster.train(desk_job(seen), settings);
  INFO(run.error());
  if (must_end_well) REQUIRE(run.exit_code() == 0);
  return seen;
}

// What came to pass, in its order: steps, and epochs below 0.
std::string steps_of(const std::string& state) {
  const auto begin = state.find(':');
  return state.substr(begin, state.find('|') - begin);
}

// Steps 1 to 12 with checkpoints in `folder`. Returns the exit code.
int run_kept(const troupe::Job& job, const std::string& folder, int ranks, const std::string& strategy,
             const std::vector<std::string>& more) {
  std::vector<std::string> words{
      "test",     "--ranks", std::to_string(ranks), "--strategy", strategy, "--run_dir", "", "--batch_size", "24",
      "--epochs", "3",       "--checkpoint_dir",    folder};
  words.insert(words.end(), more.begin(), more.end());
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  const int code = troupe::run(job, static_cast<int>(arguments.size()), arguments.data());
  troupe::process_stop_signal = 0;
  return code;
}

// A signal comes in the last rank's first batch of the validation after `step`.
troupe::Job stopped_in_validation(const std::shared_ptr<Seen>& seen, std::int64_t step) {
  auto job = desk_job(seen);
  job.loss = [inner = job.loss, step](torch::nn::Module& model, const troupe::Batch& batch, const troupe::Config& c) {
    auto& rank = troupe::this_rank();
    if (!model.is_training() && rank.steps_done() == step && rank.rank() == rank.world_size() - 1)
      troupe::process_stop_signal = SIGTERM;
    return inner(model, batch, c);
  };
  return job;
}

void check_close(const std::map<std::int64_t, std::map<std::string, double>>& mine,
                 const std::map<std::int64_t, std::map<std::string, double>>& others) {
  REQUIRE(mine.size() == others.size());
  for (const auto& [step, values] : others) {
    INFO("step " << step);
    REQUIRE(mine.at(step).size() == values.size());
    for (const auto& [name, value] : values) {
      INFO(name);
      CHECK(mine.at(step).at(name) == Approx(value).epsilon(1e-6));
    }
  }
}

}  // namespace

TEST_CASE("[U04] metrics of the program's own are one rank's, at any number of ranks and micro-batches") {
  auto settings = kDesk;
  const auto one = train(Cluster({.ranks_per_host = 1}), settings);
  REQUIRE(one->logged.size() == 12);
  CHECK(one->logged.at(0).at("samples") == 24);
  CHECK(one->logged.at(0).size() == 5);
  CHECK(one->validated.size() == 3);
  for (const int ranks : {2, 3, 4}) {
    INFO(ranks);
    const auto many = train(Cluster({.ranks_per_host = ranks}), settings);
    // Its values are sums over a batch: another batch, another value.
    for (auto* steps : {&many->logged, &many->validated}) {
      for (auto& [step, values] : *steps) values.erase("weighed");
    }
    auto expected_steps = one->logged, expected = one->validated;
    for (auto* steps : {&expected_steps, &expected}) {
      for (auto& [step, values] : *steps) values.erase("weighed");
    }
    check_close(many->logged, expected_steps);
    check_close(many->validated, expected);
    CHECK(many->states.size() == static_cast<std::size_t>(ranks));
    for (const auto& [rank, state] : many->states) CHECK(state == many->states.at(0));
  }
  // The same samples shared out unequally: a mean of the ranks' means would be another.
  settings.more["balance"] = "2,1";
  const auto unequal = train(Cluster({.ranks_per_host = 2}), settings);
  for (const auto& [step, values] : one->logged)
    CHECK(unequal->logged.at(step).at("accuracy/own") == Approx(values.at("accuracy/own")));
  settings.more = {{"grad_accum_steps", "2"}};
  const auto halves = train(Cluster({.ranks_per_host = 2}), settings);
  CHECK(halves->logged.at(3).at("samples") == 24);
  CHECK(halves->logged.at(3).at("accuracy/own") == Approx(one->logged.at(3).at("accuracy/own")));
}

TEST_CASE("[U04] a rank that is killed loses no metric and no state, whatever the strategy") {
  for (const std::string strategy : {"ddp", "fsdp", "diloco"}) {
    Settings settings = kDesk;
    settings.strategy = strategy;
    if (strategy == "fsdp") settings.more["snapshot_every"] = "3";
    if (strategy == "diloco") settings.more["sync_every"] = "2";
    const auto undisturbed = train(Cluster({.ranks_per_host = 3}), settings);
    for (const char* place : {"data", "forward", "vote", "voted", "committed", "optimizer"}) {
      for (const std::int64_t step : {2, 4, 8}) {
        for (const int victim : {0, 2}) {
          const auto what =
              strategy + ", rank " + std::to_string(victim) + " at " + place + " of step " + std::to_string(step);
          if (!troupe::testing::in_share(0.3, what)) continue;
          INFO(what);
          Cluster cluster({.ranks_per_host = 3, .seed = static_cast<std::uint64_t>(step)});
          cluster.kill(Rank{victim}, At{place, step});
          const auto hurt = train(cluster, settings);
          if (strategy != "diloco") {  // whose outer step a loss may move
            check_close(hurt->logged, undisturbed->logged);
            for (const auto& [rank, state] : hurt->states) CHECK(state == undisturbed->states.at(0));
          } else {
            const auto begins = undisturbed->states.at(0).substr(0, undisturbed->states.at(0).find('|'));
            for (const auto& [rank, state] : hurt->states) CHECK(state.starts_with(begins));
          }
        }
      }
    }
  }
}

TEST_CASE("[U04] a rank that is killed in a validation repeats it on all, and the program's state with it") {
  for (const std::string strategy : {"ddp", "fsdp"}) {
    Settings settings = kDesk;
    settings.strategy = strategy;
    const auto undisturbed = train(Cluster({.ranks_per_host = 3}), settings);
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      INFO(strategy << ", seed " << seed);
      Cluster cluster({.ranks_per_host = 3, .seed = seed});
      // In every other seed the others change their state in on_validation before they learn of it.
      cluster.kill(Rank{static_cast<int>(seed % 3)}, At{seed % 2 == 0 ? "validate" : "validated", 4});
      const auto hurt = train(cluster, settings);
      check_close(hurt->validated, undisturbed->validated);
      for (const auto& [rank, state] : hurt->states) CHECK(state == undisturbed->states.at(0));
    }
  }
}

TEST_CASE("[U04] a state of the program's own is in checkpoints, and comes back at another number of ranks") {
  const auto run = [](const std::shared_ptr<Seen>& seen, const std::string& folder, int ranks,
                      const std::string& strategy, const std::vector<std::string>& more) {
    return run_kept(desk_job(seen), folder, ranks, strategy, more);
  };
  for (const std::string strategy : {"ddp", "fsdp"}) {
    const troupe::testing::ScratchDirectory whole, parts;
    const auto undisturbed = std::make_shared<Seen>(), first = std::make_shared<Seen>();
    REQUIRE(run(undisturbed, whole.path(), 2, strategy, {}) == 0);
    REQUIRE(run(first, parts.path(), 2, strategy, {"--max_steps", "6", "--save_every", "2"}) == 0);
    CHECK(first->saved.size() >= 2);
    for (const auto& path : first->saved) CHECK(path.starts_with(parts.path()));
    for (const int ranks : {1, 3}) {
      INFO(strategy << ", resumed by " << ranks);
      const troupe::testing::ScratchDirectory copy;
      std::filesystem::copy(parts.path(), copy.path(), std::filesystem::copy_options::recursive);
      const auto second = std::make_shared<Seen>();
      REQUIRE(run(second, copy.path(), ranks, strategy, {"--resume", "latest"}) == 0);
      CHECK(second->states.size() == static_cast<std::size_t>(ranks));
      for (const auto& [rank, state] : second->states) {
        CHECK(state == second->states.at(0));
        CHECK(steps_of(state) == steps_of(undisturbed->states.at(0)));
      }
    }
    const auto read = troupe::load_checkpoint(parts.path(), "latest");
    std::set<std::string> names;
    for (const auto& [name, tensor] : read.state.tensors) {
      if (name.starts_with("state.")) names.insert(name);
    }
    CHECK(names.contains("state.counter"));
    CHECK(names.contains("state.mean"));
    CHECK(names.contains("state.history.0"));
  }
}

TEST_CASE("[U04] the program ends a run when it has had enough, on all ranks after the same step") {
  for (const int ranks : {1, 3}) {
    const auto seen = std::make_shared<Seen>();
    auto settings = kDesk;
    settings.more["log_interval"] = "5";
    const auto run = Cluster({.ranks_per_host = ranks})
                         .train(desk_job(seen, [](const Desk& desk) { return desk.counter.steps >= 5; }), settings);
    CHECK(run.exit_code() == 0);
    CHECK(run.steps().size() == 5);
    CHECK(seen->validated.size() == 2);  // of the first epoch, and where the run ends within the second
  }
  // One rank says so, and is lost after it did.
  const auto seen = std::make_shared<Seen>();
  Cluster cluster({.ranks_per_host = 3});
  cluster.kill(Rank{1}, At{"end", 8});
  const auto run = cluster.train(
      desk_job(seen, [](const Desk& desk) { return desk.counter.validations == 2 && troupe::this_rank().rank() == 1; }),
      kDesk);
  INFO(run.error());
  CHECK(run.exit_code() == 0);
  CHECK(run.steps().size() == 8);
}

TEST_CASE("[U04] at a save the state that differs is named, and the rank") {
  const troupe::testing::ScratchDirectory folder;
  auto job = points();
  job.callbacks = [](troupe::Rank& rank, torch::nn::Module&) {
    auto desk = std::make_shared<Desk>();
    rank.state("counter", desk->counter);
    rank.state("history", desk->history);
    rank.state("mean", desk->mean);
    return troupe::Callbacks{.on_step = [desk, &rank](const troupe::StepReport&) {
      ++desk->counter.steps;
      desk->history.push_back(at::full({2}, rank.rank() == 2 ? 1.0 : 2.0));
      desk->mean.add_(rank.rank() == 2 ? 1 : 2);
    }};
  };
  const auto run =
      Cluster({.ranks_per_host = 3})
          .train(job,
                 {.max_steps = 2, .batch_size = 24, .more = {{"checkpoint_dir", folder.path()}, {"save_every", "1"}}});
  CHECK(run.exit_code() != 0);
  CHECK_THAT(run.error(), Catch::Contains("the state 'history' of rank 2 differs from that of the other ranks"));
}

TEST_CASE("[U04] a validation that a signal cuts off is done by the run that goes on, before its first step") {
  for (const std::string strategy : {"ddp", "fsdp"}) {
    INFO(strategy);
    const troupe::testing::ScratchDirectory whole, parts;
    const auto undisturbed = std::make_shared<Seen>(), first = std::make_shared<Seen>(),
               second = std::make_shared<Seen>(), third = std::make_shared<Seen>(), fourth = std::make_shared<Seen>();
    REQUIRE(run_kept(desk_job(undisturbed), whole.path(), 2, strategy, {}) == 0);
    CHECK(run_kept(stopped_in_validation(first, 4), parts.path(), 2, strategy, {}) == 128 + SIGTERM);
    CHECK(first->logged.rbegin()->first == 3);  // no step after it
    CHECK(first->validated.empty());
    // The run's last one, too.
    CHECK(run_kept(stopped_in_validation(second, 12), parts.path(), 2, strategy, {"--resume", "latest"}) ==
          128 + SIGTERM);
    CHECK(second->logged.begin()->first == 4);
    check_close({second->validated.begin(), second->validated.end()},
                {undisturbed->validated.begin(), undisturbed->validated.find(12)});
    for (const auto& [rank, state] : second->states) CHECK(state == undisturbed->states.at(0));
    CHECK(run_kept(desk_job(third), parts.path(), 2, strategy, {"--resume", "latest"}) == 0);
    CHECK(third->logged.empty());
    check_close(third->validated, {undisturbed->validated.find(12), undisturbed->validated.end()});
    // And no validation is done twice.
    CHECK(run_kept(desk_job(fourth), parts.path(), 2, strategy, {"--resume", "latest"}) == 0);
    CHECK(fourth->validated.empty());
    const auto best = [](const std::string& folder) { return troupe::load_checkpoint(folder, "best").state.metadata; };
    for (const auto* what : {"step", "best", "best_loss"}) {
      INFO(what);
      CHECK(best(parts.path())[what] == best(whole.path())[what]);
    }
  }
}

TEST_CASE("[U04] a validation within an epoch, at the run's end, is not done again by runs that go on") {
  for (const std::string save_every : {"1000", "3"}) {
    INFO(save_every);
    const troupe::testing::ScratchDirectory folder;
    const std::vector<std::string> six{"--max_steps", "6", "--save_every", save_every};
    auto again = six;
    again.insert(again.end(), {"--resume", "latest"});
    const auto first = std::make_shared<Seen>(), second = std::make_shared<Seen>(), third = std::make_shared<Seen>();
    CHECK(run_kept(stopped_in_validation(first, 6), folder.path(), 2, "ddp", six) == 128 + SIGTERM);
    CHECK(first->validated.size() == 1);
    CHECK(run_kept(desk_job(second), folder.path(), 2, "ddp", again) == 0);
    CHECK(second->validated.size() == 1);
    CHECK(second->validated.contains(6));
    CHECK(run_kept(desk_job(third), folder.path(), 2, "ddp", again) == 0);
    CHECK(third->validated.empty());
  }
}

TEST_CASE("[U04] a run that the program has ended is ended when it goes on, unless the program thinks otherwise") {
  for (const int ranks : {1, 3}) {
    for (const std::string save_every : {"1000", "3"}) {
      INFO(ranks << " ranks, save_every " << save_every);
      const troupe::testing::ScratchDirectory folder;
      const auto run = [&](std::int64_t most, std::size_t validations, const std::vector<std::string>& more,
                           const char* interval = "3") {
        const auto seen = std::make_shared<Seen>();
        auto words = more;
        words.insert(words.end(), {"--log_interval", interval, "--save_every", save_every});
        CHECK(run_kept(desk_job(seen, [most](const Desk& desk) { return desk.counter.steps >= most; }), folder.path(),
                       ranks, "ddp", words) == 0);
        CHECK(seen->validated.size() == validations);
        return seen->logged.empty() ? 0 : seen->logged.rbegin()->first + 1;
      };
      CHECK(run(5, 2, {}) == 6);
      for (int again = 0; again < 3; ++again) CHECK(run(5, 0, {"--resume", "latest"}, again < 2 ? "3" : "5") == 0);
      CHECK(run(8, 1, {"--resume", "latest"}) == 8);  // the end of an epoch
      CHECK(run(8, 0, {"--resume", "latest"}) == 0);
      CHECK(run(100, 1, {"--resume", "latest"}) == 12);
    }
  }
}

TEST_CASE("[U04] names, weights and places that can't be are refused in a line") {
  const auto error_of = [](const std::function<void(troupe::Rank&)>& work, bool in_callback = true) {
    auto job = points();
    if (in_callback) {
      job.callbacks = [work](troupe::Rank& rank, torch::nn::Module&) {
        work(rank);
        return troupe::Callbacks{};
      };
    } else {
      job.callbacks = [work](troupe::Rank& rank, torch::nn::Module&) {
        return troupe::Callbacks{.on_step = [work, &rank](const troupe::StepReport&) { work(rank); }};
      };
    }
    const auto run = Cluster({.ranks_per_host = 1}).train(job, {.max_steps = 2, .batch_size = 24});
    CHECK(run.exit_code() != 0);
    return run.error();
  };
  std::int64_t number = 0;
  CHECK_THAT(error_of([](auto& rank) { rank.log("", 1.0); }), Catch::Contains("has no name"));
  CHECK_THAT(error_of([](auto& rank) { rank.log("a=b", 1.0); }), Catch::Contains("'a=b' is not a valid metric name"));
  CHECK_THAT(error_of([](auto& rank) { rank.log("lr", 1.0); }), Catch::Contains("that Troupe reports itself"));
  CHECK_THAT(error_of([](auto& rank) { rank.log("x", at::zeros({2})); }), Catch::Contains("has 2 elements"));
  CHECK_THAT(error_of([](auto& rank) { rank.log("x", 1.0, troupe::Reduce::mean, -1.0); }, false),
             Catch::Contains("weight of 'x'"));
  CHECK_THAT(error_of(
                 [](auto& rank) {
                   rank.log("x", 1.0);
                   rank.log("x", 1.0, troupe::Reduce::max);
                 },
                 false),
             Catch::Contains("reduced by mean and by max"));
  CHECK_THAT(error_of([&](auto& rank) { rank.state("a.b", number); }),
             Catch::Contains("'a.b' is not a valid state name"));
  CHECK_THAT(error_of([&](auto& rank) {
               rank.state("a", number);
               rank.state("a", number);
             }),
             Catch::Contains("there is already a state 'a'"));
  CHECK_THAT(error_of([&](auto& rank) { rank.state("a", number); }, false),
             Catch::Contains("between distribute and keep_checkpoints"));
  CHECK_THROWS_AS(troupe::this_rank(), troupe::Error);
}
