// cuda_graphs, without a device (tests/support/fake_graph.hpp): whatever kernels launched one by one do, a graph of
// them does, to the bit; and what changes from step to step reaches it.
#include "actors/compute/graph_kinds.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/fake_graph.hpp"
#include "tests/support/noted_ranges.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using namespace troupe::testing;
using troupe::test::FakeDevice;
using troupe::test::FakeGraph;

namespace {

// With all that a forward may depend on besides its input: a buffer that it changes, and both kinds of random numbers.
struct GraphNetImpl : torch::nn::Module {
  GraphNetImpl() {
    for (const auto& [name, out, in] :
         {std::tuple("first", 13, 8), std::tuple("second", 13, 13), std::tuple("head", 3, 13)}) {
      weights.push_back(register_parameter(name, (torch::randn({out, in}) / std::sqrt(in)).to(FakeDevice::device())));
    }
    unused = register_parameter("unused", torch::zeros({2}).to(FakeDevice::device()));
    seen = register_buffer("seen", torch::zeros({1}).to(FakeDevice::device()));
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = ours->forward(torch::tanh(torch::nn::functional::linear(input, weights[0])));
    if (stock) x = torch::dropout(x, 0.2, is_training());
    {
      at::NoGradGuard no_grad;
      seen.mul_(0.9).add_(x.detach().mean());
    }
    return torch::nn::functional::linear(torch::tanh(torch::nn::functional::linear(x, weights[1])) * (1 + seen),
                                         weights[2]);
  }
  nn::Dropout ours = register_module("ours", nn::Dropout(0.3));
  std::vector<at::Tensor> weights;
  at::Tensor unused, seen;
  bool stock = true;  // ranks of one process share LibTorch's generator
};

struct GraphRun {
  SmallTraining::Result result;
  std::vector<StepReport> reports;  // of rank 0
  std::size_t written = 0;          // on rank 0, at the end
  int replays = 0;
};

struct GraphTraining {
  std::string strategy = "ddp";
  int ranks = 2;
  std::int64_t steps = 14;
  std::function<void(SmallTraining&)> change = [](SmallTraining&) {};

  GraphRun run(bool graphs) const {
    FakeDevice::reset();
    SmallTraining training(strategy, ranks);
    training.steps = steps;
    training.seeds = true;
    training.jobs.options.device = FakeDevice::device();
    training.jobs.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
    training.jobs.options.training.cuda_graphs = graphs;
    training.jobs.options.training.verify_every = 0;
    training.model = [alone = ranks == 1] {
      auto model = make_seeded<GraphNetImpl>(3);
      model->stock = alone;
      return model;
    };
    training.forward = [](torch::nn::Module& model, const at::Tensor& input) {
      return dynamic_cast<GraphNetImpl&>(model).forward(input.to(FakeDevice::device()));
    };
    GraphRun run;
    training.at_end = [&](RankSystem& system, Optimizer&) {
      if (system.compute().rank() == 0) run.written = system.compute().graphs_written();
    };
    change(training);
    const auto before = FakeGraph::replays();
    run.result = training.run();
    run.replays = FakeGraph::replays() - before;
    return run;
  }

  GraphRun check_same() const {
    const auto kernels = run(false);
    auto graphs = run(true);
    REQUIRE(joined(kernels.result.errors) == "");
    REQUIRE(joined(graphs.result.errors) == "");
    CHECK(kernels.replays == 0);
    CHECK(kernels.result.losses.size() == static_cast<std::size_t>(steps));
    CHECK(largest_difference(kernels.result.losses, graphs.result.losses) == 0);
    CHECK(largest_difference(kernels.result.state, graphs.result.state) == 0);
    return graphs;
  }
};

}  // namespace

TEST_CASE("[T08] [L03] a graph's launch is one range, forward and backward") {
  NotedRanges ranges;
  set_span_ranges(&ranges);
  CHECK(joined(GraphTraining{.steps = 6}.run(true).result.errors) == "");
  set_span_ranges(nullptr);
  CHECK(ranges.balanced());
  CHECK(ranges.count("compute: / ProfilerStep#2 / backward") == 2);
  CHECK(ranges.count("compute: / ProfilerStep#2 / forward and backward") == 0);
  CHECK(ranges.count("compute: / ProfilerStep#5 / backward") == 0);
  CHECK(ranges.count("compute: / ProfilerStep#5 / forward and backward") == 2);
}

TEST_CASE("[L03] a kind of micro-batch runs three times, is written down at the fourth, and is a graph from then on") {
  using Turn = GraphKinds::Turn;
  GraphKinds kinds;
  const auto a = torch::zeros({4, 2}), b = torch::zeros({4}, at::kLong);
  const auto first = graph_kind(std::vector{a, b}, true, true, false),
             last = graph_kind(std::vector{a, b}, true, false, true);
  CHECK(first != last);
  CHECK(first != graph_kind(std::vector{a, b}, false, true, false));
  CHECK(first != graph_kind(std::vector{a.narrow(0, 0, 3), b}, true, true, false));
  CHECK(first != graph_kind(std::vector{a.to(at::kDouble), b}, true, true, false));
  CHECK(first != graph_kind(std::vector{torch::zeros({2, 4}).t(), b}, true, true, false));
  CHECK(first == graph_kind(std::vector{torch::ones({4, 2}), b}, true, true, false));
  for (int i = 0; i < 3; ++i) CHECK(kinds.next(first) == Turn::run);
  CHECK(kinds.next(last) == Turn::run);
  CHECK(kinds.next(first) == Turn::write);
  for (int i = 0; i < 3; ++i) CHECK(kinds.next(first) == Turn::replay);
  CHECK(kinds.next(last) == Turn::run);
  kinds.forget();
  CHECK(kinds.next(first) == Turn::run);
  for (int i = 0; i < 2; ++i) kinds.next(first);
  CHECK(kinds.next(first) == Turn::write);
  kinds.drop(first);  // it could not be
  CHECK(kinds.written() == 0);
  CHECK(kinds.next(first) == Turn::run);
  // Memory is bounded: so many graphs, so many kinds that are counted.
  for (int time = 0; time < 5; ++time) {
    for (int kind = 0; kind < 100; ++kind) kinds.next("kind " + std::to_string(kind));
  }
  CHECK(kinds.written() == GraphKinds::kMost);
  CHECK(kinds.next("kind 99") == Turn::run);
}

TEST_CASE("[L03] a step that is a graph has the losses, weights, buffers and random numbers of its kernels") {
  GraphTraining training;
  training.ranks = GENERATE(1, 2, 3);
  const auto run = training.check_same();
  CHECK(run.written == 1);
  // Buckets are laid out anew after the first step, so that the kind begins anew in the second one.
  CHECK(run.replays == training.ranks * (training.steps - 1 - GraphKinds::kWarmUp));
}

TEST_CASE("[L03] graphs of a step's first, middle and last micro-batches add up to what their kernels do") {
  GraphTraining training;
  training.change = [](SmallTraining& small) {
    small.jobs.options.training.grad_accum_steps = 4;
    small.optimizer.momentum = 0.9;
  };
  CHECK(training.check_same().written == 3);
}

TEST_CASE("[L03] graphs with a late vote, clipping and a loss scale that grows and falls") {
  GraphTraining training;
  const bool late = GENERATE(false, true);
  training.steps = 20;
  training.change = [&](SmallTraining& small) {
    auto& options = small.jobs.options.training;
    options.vote = late ? "late" : "step";
    options.clip_norm = 0.5;
    options.loss_scaler = "on";
    options.on_not_finite = "skip";
    options.loss_scale_init = 1e36;  // overflows, which must skip steps and bring it down
    options.loss_scale_interval = 3;
    small.optimizer.optimizer = "adamw";
  };
  CHECK(training.check_same().written == 1);
}

TEST_CASE("[L03] graphs of local_sgd and diloco") {
  GraphTraining training;
  training.strategy = GENERATE("local_sgd", "diloco");
  training.change = [](SmallTraining& small) { small.jobs.options.strategy.sync_every = 4; };
  CHECK(training.check_same().replays > 0);
}

TEST_CASE("[L03] a graph's accuracy is counted, and the host waits once a step for it and everything else") {
  std::vector<double> correct[2];
  for (const bool graphs : {false, true}) {
    GraphTraining training;
    training.ranks = 1;
    int items = 0;
    training.change = [&](SmallTraining& small) {
      small.before_step = [&](RankSystem&, torch::nn::Module&, std::int64_t step) {
        if (step == 2) items = FakeDevice::items();
      };
      small.after_step = [&](const StepReport& report) { correct[graphs ? 1 : 0].push_back(report.correct); };
      small.jobs.options.training.cuda_graphs = graphs;
      small.counts_correct = true;
    };
    REQUIRE(joined(training.run(graphs).result.errors) == "");
    CHECK(FakeDevice::items() == items);
  }
  REQUIRE(correct[0].size() == 14);
  CHECK(correct[0] == correct[1]);
  CHECK(*std::max_element(correct[0].begin(), correct[0].end()) > 4);
}

TEST_CASE(
    "[L03] on a replay the reducer's stream waits for each bucket's mark, and no two streams meet without an event") {
  GraphTraining training;
  training.ranks = 1;
  std::vector<std::string> calls;
  training.change = [&](SmallTraining& small) {
    small.before_step = [&](RankSystem& system, torch::nn::Module&, std::int64_t step) {
      if (step == 5) FakeDevice::look_for_races();
      if (step != 12) return;
      REQUIRE(system.compute().graphs_written() == 1);
      FakeDevice::forget();
    };
    small.after_step = [&](const StepReport& report) {
      if (report.step == 12) calls = FakeDevice::calls();
    };
  };
  REQUIRE(joined(training.run(true).result.errors) == "");
  CHECK(FakeDevice::races().empty());
  std::set<std::string> marked;
  int waits = 0;
  for (const auto& call : calls) {
    const auto event = call.substr(call.rfind(' ') + 1), first = call.substr(0, call.find(' '));
    if (call.find(" marks s0") != std::string::npos) marked.insert(first);
    if (call.find(" waits for ") == std::string::npos || first == "s0") continue;
    CHECK(marked.count(event) == 1);
    ++waits;
  }
  CHECK(waits >= 2);  // a bucket each
}

TEST_CASE("[L03] batches of another shape, and a rank that only joins in, run kernel by kernel between graphs") {
  for (const bool empty : {false, true}) {
    GraphTraining training;
    training.change = [empty](SmallTraining& small) {
      if (empty) {
        small.weight_of = [](int rank, std::int64_t step) { return step % 5 == 4 ? (rank == 0 ? 2.0 : 0.0) : 1.0; };
      } else {
        small.batch_of = [](std::int64_t step) { return step % 5 == 4 ? 8 : 16; };
      }
    };
    const auto run = training.check_same();
    CHECK(run.written == 1);
    CHECK(run.replays > 0);
  }
}

TEST_CASE(
    "[L03] what can't be a graph is refused in one line: a value that is read, a number of the host's, a collective, a "
    "strategy") {
  const auto error_of = [](const std::function<void(SmallTraining&)>& change, const std::string& strategy = "ddp") {
    GraphTraining training;
    training.ranks = 1;
    training.strategy = strategy;
    training.change = change;
    return joined(training.run(true).result.errors);
  };
  const auto with_forward = [](const std::function<at::Tensor(const at::Tensor&)>& work) {
    return [work](SmallTraining& small) {
      small.forward = [work](torch::nn::Module& model, const at::Tensor& input) {
        return work(dynamic_cast<GraphNetImpl&>(model).forward(input));
      };
    };
  };
  CHECK_THAT(error_of(with_forward([](const at::Tensor& x) { return x * (x.sum().item<double>() > 0 ? 1 : 2); })),
             Catch::Contains("rank 0, compute, step 4: cuda_graphs: forward or backward does something that a graph "
                             "can't capture: item:") &&
                 Catch::Contains("remove whatever reads a value"));
  CHECK_THAT(error_of(with_forward([](const at::Tensor& x) { return x + torch::ones({3}).to(FakeDevice::device()); })),
             Catch::Contains("a copy between host and device"));
  CHECK_THAT(error_of(with_forward([](const at::Tensor& x) { return x.cpu(); })),
             Catch::Contains("a copy between host and device"));
  CHECK_THAT(error_of([](SmallTraining& small) { small.jobs.options.training.activation_checkpointing = "block"; }),
             Catch::Contains("cuda_graphs: activation_checkpointing"));
  CHECK_THAT(error_of([](SmallTraining& small) {
               small.forward = [lost = std::make_shared<nn::DropoutImpl>(0.5)](torch::nn::Module& model,
                                                                               const at::Tensor& input) {
                 return lost->forward(dynamic_cast<GraphNetImpl&>(model).forward(input));
               };
             }),
             Catch::Contains("cuda_graphs: a troupe::nn::Dropout is not part of the model"));
  CHECK_THAT(error_of([](SmallTraining& small) { small.jobs.options.strategy.switch_at = "8:diloco"; }),
             Catch::Contains("cuda_graphs: strategy ddp with switch_at moves to"));
  CHECK_THAT(error_of([](SmallTraining&) {}, "fsdp full_shard"),
             Catch::Contains("cuda_graphs: strategy fsdp does more"));
}

TEST_CASE("[L03] a micro-batch is another graph where those before it gave gradients to other parameters") {
  std::vector<at::Tensor> ends;
  std::size_t written = 0;
  for (const bool graphs : {false, true}) {
    FakeDevice::reset();
    SmallTraining setting("ddp", 1);
    auto& cluster = setting.jobs;
    cluster.options.device = FakeDevice::device();
    cluster.options.training.cuda_graphs = graphs;
    cluster.options.training.verify_every = 0;
    cluster.options.training.grad_accum_steps = 2;
    const auto errors = cluster.run([&](RankSystem& system) {
      auto& compute = system.compute();
      const auto model = make_seeded<GraphNetImpl>(3);
      model->stock = false;
      compute.distribute(model);
      const auto optimizer = make_optimizer(OptimizerOptions{}, one_group(*model));
      for (std::int64_t step = 0; step < 24; ++step) {
        for (const std::int64_t rows :
             {step % 8 < 5 ? 4 : 6, 5}) {  // of 6 samples the loss does not use all parameters
          const auto loss_of = [&](const at::Tensor& x) {
            const auto loss = model->forward(x).square().mean();
            return rows == 6 ? loss : loss * (1 + (model->unused - 1).square().sum());
          };
          const auto x = small_batch(step).first.narrow(0, 0, rows).to(FakeDevice::device());
          if (graphs) {
            compute.run_graphed({{x}, static_cast<double>(rows), 1, {}, [&](const std::vector<at::Tensor>& inputs) {
                                   return Loss(loss_of(inputs[0]));
                                 }});
          } else {
            compute.backward(loss_of(x), static_cast<double>(rows));
          }
        }
        compute.step(*optimizer, 0.02);
      }
      written = compute.graphs_written();
      ends.push_back(torch::cat({model->unused.detach().flatten(), model->weights[0].detach().flatten()}).cpu());
    });
    REQUIRE(joined(errors) == "");
  }
  CHECK(written == 4);
  CHECK(torch::equal(ends[0], ends[1]));
}

TEST_CASE("[L03] graphs begin anew where a layer is frozen, and where the model leaves train mode") {
  GraphTraining training;
  training.ranks = 1;
  const bool frozen = GENERATE(true, false);
  training.change = [&](SmallTraining& small) {
    small.before_step = [&](RankSystem&, torch::nn::Module& model, std::int64_t step) {
      if (step != 9) return;
      frozen ? void(model.named_parameters()["first"].set_requires_grad(false)) : model.eval();
    };
  };
  const auto run = training.check_same();
  CHECK(run.written == (frozen ? 1 : 2));
  CHECK(run.replays == 5 + 2);  // steps 4 to 8, and 12 and 13
}

TEST_CASE("[T11] after a change of membership graphs begin anew, in the new communicators' memory") {
  GraphTraining training;
  std::size_t before = 0;
  training.change = [&](SmallTraining& small) {
    small.before_step = [&](RankSystem& system, torch::nn::Module&, std::int64_t step) {
      auto& compute = system.compute();
      if (step != 8) return;
      if (compute.rank() == 0) before = compute.graphs_written();
      compute.strategy().rejoin(next_generation(compute));
    };
  };
  const auto run = training.check_same();
  CHECK(before == 1);
  CHECK(run.written == 1);
  CHECK(run.replays == training.ranks * (4 + 3));  // steps 4 to 7, and 11 to 13
}
