// The gpt example's model on meshes of simulated ranks, beside one rank.
#include "launch/loop/rank_system.hpp"
#include "strategies/mesh/sharded_mesh.hpp"

#include <atomic>
#include <functional>
#include <map>
#include <random>

#include "actors/strategy/evaluation.hpp"
#include "actors/strategy/own_figures.hpp"
#include "actors/strategy/peer_waits.hpp"
#include "actors/strategy/saved_state.hpp"
#include "examples/gpt/gpt.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "tests/catch.hpp"
#include "tests/share.hpp"
#include "tests/support/lost_capabilities.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/tensors_reader.hpp"

using namespace troupe;
using testing::joined;
using testing::largest_difference;

namespace {

GptOptions mesh_gpt_options() {
  GptOptions options;
  options.vocab_size = 12;
  options.block_size = 8;
  options.n_layer = 8;
  options.n_head = 4;
  options.n_embd = 8;
  return options;
}

std::shared_ptr<Dataset> token_samples() {
  const auto ids = torch::randint(12, {64, 9}, at::detail::createCPUGenerator(5), at::TensorOptions().dtype(at::kLong));
  return std::make_shared<TensorDataset>(ids.narrow(1, 0, 8).contiguous(), ids.narrow(1, 1, 8).contiguous());
}

/// A run of a few steps, and what came of it.
struct MeshRun {
  Config config;
  GptOptions model = mesh_gpt_options();
  std::function<std::shared_ptr<torch::nn::Module>()> make;  ///< in the place of the gpt
  std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)> forward =
      [](torch::nn::Module& m, const at::Tensor& ids) { return m.as<GptImpl>()->forward(ids); };
  std::function<void(SimulationOptions&)> simulate_with = [](auto&) {};
  std::function<void(Rank&, torch::nn::Module&)> between = [](auto&, auto&) {};
  NamedTensors saved;  ///< read before the first step
  bool steps_at_once = false;

  std::vector<std::pair<std::string, double>> figures;     // rank 0's
  std::vector<double> losses, norms, max_losses, samples;  // of the steps, as rank 0 had them
  double held_out = 0;
  NamedTensors state;  // whole: model and optimizer
  std::vector<std::string> errors;
  std::string described;
  std::map<int, std::int64_t> resident;  // bytes of parameters, by rank
  std::map<int, std::vector<int>> borders;
  std::map<int, std::int64_t> owned, gathers;  // on a mesh with fsdp, by rank: elements of its shards, gathers of units
  std::map<int, double> inside_ms, waited_ms;  // by rank: as the steps' reports say, as the strategy does
  int generations = 1;
  std::optional<JobOver> over;

  MeshRun(const std::string& strategy, int ranks, const std::string& mesh = "") {
    config.strategy = strategy;
    config.mesh = mesh;
    config.ranks = ranks;
    config.batch_size = 16;
    config.grad_accum_steps = 4;
    config.optimizer = "adamw";
    config.lr = 0.02;
    config.clip_norm = 0.5;
    config.max_steps = 6;
    config.epochs = 10;
    config.collective_timeout = 20;
    config.tensor_plan = kGptPlan;
  }

  void body(Rank& rank) {
    std::shared_ptr<torch::nn::Module> module;
    rank.distribute([&] { return module = make ? make() : Gpt(model).ptr(); });
    const auto optimizer = rank.make_optimizer(*module);
    auto& compute = system_of(rank).compute();
    auto& strategy = compute.strategy();
    if (!saved.empty()) {
      strategy.saved_state().read_state(testing::TensorsReader(saved), *optimizer);
      strategy.saved_state().publish_state();
    }
    const auto loss_of = [&](const Batch& batch) {
      return torch::nn::functional::cross_entropy(forward(*module, batch.input).flatten(0, 1), batch.target.flatten());
    };
    const auto data = token_samples();
    testing::StepBatches of_step;
    auto stream = rank.loader(data);
    while (const auto batch = stream.next()) {
      between(rank, *module);
      if (!of_step.take(rank, batch, loss_of, steps_at_once)) continue;
      const auto report = rank.step(*optimizer);
      if (report.repeat) continue;
      std::lock_guard lock(mutex_);
      losses.resize(
          static_cast<std::size_t>(std::max<std::int64_t>(static_cast<std::int64_t>(losses.size()), report.step + 1)));
      losses[static_cast<std::size_t>(report.step)] = report.loss;  // on all ranks the same
      inside_ms[rank.rank()] += report.inside_ms;
      if (const auto* waits = strategy.capability<PeerWaits>())
        waited_ms[rank.rank()] = std::chrono::duration<double, std::milli>(waits->time_waited()).count();
      if (rank.rank() == 0) {
        if (const auto* own = strategy.capability<OwnFigures>()) figures = own->own_figures(rank.steps_done());
        norms.push_back(report.gradient_norm);
        samples.push_back(report.samples);
      }
    }
    compute.settle_optimizer(*optimizer);
    {
      torch::NoGradGuard no_grad;
      auto sums = at::zeros({2}, at::kDouble);
      std::vector<std::int64_t> all(64);
      for (std::int64_t i = 0; i < 64; ++i) all[static_cast<std::size_t>(i)] = i;
      module->eval();
      strategy.evaluation().begin_evaluation();
      for (int times = 0; times < 2; ++times) {
        at::Tensor loss;
        if (strategy.evaluation().evaluate([&] { loss = loss_of(data->get_batch(all, {})); })) {
          sums[0] += loss.item<double>();
          sums[1] += 1;
        }
      }
      strategy.evaluation().end_evaluation();
      rank.all_reduce(sums);
      std::lock_guard lock(mutex_);
      held_out = (sums[0] / sums[1]).item<double>();
    }
    auto parts = strategy.saved_state().state_parts(*optimizer, rank.rank(), rank.world_size());
    for (auto& part : parts) part.pieces.assign(1, values_of(part).clone());
    std::lock_guard lock(mutex_);
    std::set<std::string> names;
    for (const auto& part : parts) CHECK((names.insert(part.name).second));  // a file has each tensor once
    for (auto& part : parts) parts_.push_back(std::move(part));
    if (rank.rank() == 0) described = strategy.describe();
    if (auto* mesh = dynamic_cast<MeshParallel*>(&strategy)) {
      borders[rank.rank()] = mesh->borders();
      for (const auto& [name, tensor] : mesh->replicated_tensors())
        resident[rank.rank()] += static_cast<std::int64_t>(tensor.nbytes());
    }
    if (auto* mesh = dynamic_cast<ShardedMesh*>(&strategy)) {
      for (const auto& slice : mesh->shards().parameters().slices()) owned[rank.rank()] += slice.place.numel;
      if (const auto* units = mesh->shards().gathers()) gathers[rank.rank()] = units->counts().gathers;
    }
  }

  MeshRun& run() {
    auto simulation = testing::simulation_of(config);
    simulation.log = [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      if (line.starts_with("generation ") && line.find(" is interrupted") == std::string::npos) ++generations;
    };
    simulate_with(simulation);
    testing::run_simulation(
        config, simulation, [this](Rank& rank) { body(rank); },
        [this](int slot, const ErrorReport& report) {
          errors.push_back("rank " + std::to_string(slot) + ": " + report.to_string());
        },
        &over);
    if (errors.empty()) state = testing::assemble(parts_);
    return *this;
  }

 private:
  std::mutex mutex_;
  std::vector<TensorPart> parts_;
};

const MeshRun& one_rank() {
  static auto* const run = [] {
    auto* made = new MeshRun("ddp", 1);
    made->run();
    return made;
  }();
  return *run;
}

void equals_one_rank(const MeshRun& run, const MeshRun& expected, double bound = 1e-5) {
  REQUIRE(joined(run.errors) == "");
  REQUIRE(joined(expected.errors) == "");
  REQUIRE((run.losses.size() == expected.losses.size()));
  CHECK((largest_difference(run.losses, expected.losses) < bound));
  CHECK((largest_difference(run.norms, expected.norms) < 10 * bound));
  CHECK((largest_difference(run.samples, expected.samples) == 0));
  CHECK((std::abs(run.held_out - expected.held_out) < bound));
  CHECK((largest_difference(testing::model_part(run.state), testing::model_part(expected.state)) <
         1e-3));  // AdamW's first steps
  CHECK((run.state.size() == expected.state.size()));
}

}  // namespace

TEST_CASE("[X02] a pipeline trains as one rank does, by each schedule, on 2, 4 and 8 ranks") {
  const auto schedule =
      GENERATE(std::string("gpipe"), std::string("1f1b"), std::string("interleaved"), std::string("zero_bubble"));
  const int ranks = GENERATE(2, 4, 8);
  MeshRun run("pipeline", ranks);
  run.config.pipeline_schedule = schedule;
  if (schedule == "interleaved" && ranks < 8) run.config.pipeline_chunks = 8 / ranks;
  if (schedule == "interleaved" && ranks == 8) run.config.grad_accum_steps = 8;
  INFO(schedule << " on " << ranks);
  run.run();
  equals_one_rank(run, one_rank());
  REQUIRE(run.figures.size() == 1);
  CHECK(run.figures[0].first == "bubble");
  const PipelineShape shape{ranks, static_cast<int>(run.config.grad_accum_steps),
                            static_cast<int>(run.config.pipeline_chunks)};
  if (schedule == "zero_bubble" && ranks == 8) return;  // more ranks than its formula is for
  CHECK(run.figures[0].second == Approx(bubble_formula(schedule, shape)).epsilon(0.1));
}

TEST_CASE("[X02] a pipeline rank holds its own stages' blocks, and what is outside of blocks") {
  MeshRun run("pipeline", 4);
  run.config.max_steps = 1;
  run.run();
  REQUIRE(joined(run.errors) == "");
  CHECK((run.borders.at(0) == std::vector<int>{0, 2, 4, 6, 8}));
  CHECK_THAT(run.described, Catch::Contains("dp=1,tp=1,pp=4, 1f1b, stages of 2+2+2+2 blocks"));
  std::int64_t outside = 0, blocks = 0;
  for (const auto& item : Gpt(mesh_gpt_options())->named_parameters())
    (item.key().starts_with("layers.") ? blocks : outside) += static_cast<std::int64_t>(item.value().nbytes());
  for (int rank = 0; rank < 4; ++rank) CHECK((run.resident.at(rank) == outside + blocks / 4));
}

TEST_CASE("[X04] dp x pp trains as one rank does, on 4 and 8 simulated ranks") {
  const auto [ranks, mesh] = GENERATE(table<int, std::string>({{4, "dp=2,pp=2"}, {8, "dp=2,pp=4"}, {8, "dp=4,pp=2"}}));
  const auto schedule = GENERATE(std::string("1f1b"), std::string("zero_bubble"));
  MeshRun run("pipeline", ranks, mesh);
  run.config.pipeline_schedule = schedule;
  INFO(mesh << " " << schedule);
  run.run();
  equals_one_rank(run, one_rank());
}

TEST_CASE("[X02] a pipeline recomputes activations where it is told to, by each kind of backward") {
  const auto schedule = GENERATE(std::string("1f1b"), std::string("zero_bubble"));
  MeshRun run("pipeline", 4, "dp=2,pp=2");
  run.config.pipeline_schedule = schedule;
  run.config.activation_checkpointing = "type:TransformerBlock";
  run.run();
  equals_one_rank(run, one_rank());
}

TEST_CASE("[X02] stages are balanced by costs that are given, or measured in a forward before the first step") {
  MeshRun given("pipeline", 2);
  given.config.pipeline_costs = "7,1,1,1,1,1,1,1";
  given.run();
  equals_one_rank(given, one_rank());
  CHECK((given.borders.at(0) == std::vector<int>{0, 1, 8}));

  MeshRun measured("pipeline", 4);
  measured.config.pipeline_costs = "measured";
  measured.run();
  equals_one_rank(measured, one_rank());
  REQUIRE(measured.borders.at(0).size() == 5);
  for (int rank = 1; rank < 4; ++rank) CHECK((measured.borders.at(rank) == measured.borders.at(0)));
}

TEST_CASE("[X02] a schedule of one's own runs, also where a rank wants things in another order than they are sent in") {
  register_schedule("zigzag", "gpipe whose odd ranks begin with the last micro-batch", [](const PipelineShape& shape) {
    std::vector<StageSchedule> lists;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      auto& list = lists.emplace_back();
      for (const auto kind : {StageInstruction::Kind::forward, StageInstruction::Kind::backward}) {
        for (int m = 0; m < shape.micro_batches; ++m)
          list.push_back({kind, rank % 2 == 0 ? m : shape.micro_batches - 1 - m, 0});
      }
    }
    return lists;
  });
  MeshRun run("pipeline", 4);
  run.config.pipeline_schedule = "zigzag";
  run.run();
  equals_one_rank(run, one_rank());
}

TEST_CASE("[X02] a pipeline in bf16 autocast trains as one rank does, by each kind of backward") {
  const auto schedule = GENERATE(std::string("1f1b"), std::string("zero_bubble"));
  MeshRun alone("ddp", 1), run("pipeline", 4, "tp=2,pp=2");
  for (auto* each : {&alone, &run}) {
    each->forward = [](torch::nn::Module& m, const at::Tensor& ids) {
      const AutocastGuard autocast(true, at::kBFloat16);
      return m.as<GptImpl>()->forward(ids).to(at::kFloat);
    };
  }
  run.config.pipeline_schedule = schedule;
  alone.run();
  run.run();
  REQUIRE(joined(alone.errors) == "");
  REQUIRE(joined(run.errors) == "");
  CHECK((largest_difference(run.losses, alone.losses) < 0.02));  // bf16 adds up parts
  CHECK((largest_difference(alone.losses, one_rank().losses) > 1e-5));
}

TEST_CASE("[X02] dropout in a pipeline draws what one rank draws") {
  MeshRun alone("ddp", 1), run("pipeline", 4);
  alone.model.dropout = run.model.dropout = 0.2;
  run.config.pipeline_schedule = "interleaved";
  run.config.pipeline_chunks = 2;
  alone.run();
  run.run();
  equals_one_rank(run, alone);
  CHECK((largest_difference(alone.losses, one_rank().losses) > 1e-3));
}

TEST_CASE("[X03] tensor parallel trains as one rank does, on 2 and 4 ranks, with and without sequence parallel") {
  const int ranks = GENERATE(2, 4);
  const bool sequence = GENERATE(false, true), tied = GENERATE(true, false);
  MeshRun alone("ddp", 1), run("tensor_parallel", ranks);
  alone.model.tied_head = run.model.tied_head = tied;
  alone.model.rotary = run.model.rotary = !tied;
  alone.model.dropout = run.model.dropout = 0.2;
  run.config.sequence_parallel = sequence;
  alone.run();
  run.run();
  equals_one_rank(run, alone);
}

TEST_CASE("[X04] each combination of dp, tp and pp trains as one rank does, on 8 simulated ranks") {
  const auto mesh = GENERATE(std::string("dp=2,tp=2,pp=2"), std::string("dp=2,tp=4"), std::string("tp=2,pp=4"),
                             std::string("tp=4,pp=2"), std::string("dp=4,tp=2"), std::string("dp=8"));
  const bool sequence = GENERATE(false, true);
  if (sequence && mesh == "dp=8") return;
  MeshRun run("pipeline", 8, mesh);
  run.config.grad_accum_steps = mesh == "dp=8" ? 2 : 4;
  run.config.sequence_parallel = sequence;
  INFO(mesh);
  run.run();
  equals_one_rank(run, one_rank());
}

TEST_CASE("[X04] each combination with fsdp trains as one rank does, on 2, 4, 8 and 16 simulated ranks") {
  const auto [ranks, mesh] = GENERATE(table<int, std::string>({{2, "fsdp=2"},
                                                               {4, "fsdp=2,tp=2"},
                                                               {4, "fsdp=2,pp=2"},
                                                               {4, "dp=2,fsdp=2"},
                                                               {8, "fsdp=2,tp=2,pp=2"},
                                                               {8, "dp=2,fsdp=2,tp=2"},
                                                               {8, "dp=2,fsdp=2,pp=2"},
                                                               {8, "fsdp=4,tp=2"},
                                                               {16, "dp=2,fsdp=2,tp=2,pp=2"}}));
  const bool mapped = GENERATE(true, false);  // false: units are gathered, as between hosts
  const bool sequence = GENERATE(false, true);
  if (sequence && mesh.find("tp") == std::string::npos) return;
  if (!testing::in_share(0.15, mesh + (mapped ? "mapped" : "") + (sequence ? "sequence" : ""))) return;
  MeshRun run("pipeline", ranks, mesh);
  run.config.fsdp_mapped = mapped;
  run.config.sequence_parallel = sequence;
  INFO(mesh << (mapped ? " mapped" : " gathered"));
  run.run();
  equals_one_rank(run, one_rank());
}

TEST_CASE("[X04] a mesh of shards can do what its shards can, or says why not") {
  MeshRun run("pipeline", 2, "fsdp=2");
  run.config.max_steps = 1;
  run.between = [](Rank& rank, torch::nn::Module&) {
    auto& mesh = dynamic_cast<ShardedMesh&>(system_of(rank).compute().strategy());
    CHECK(testing::lost_capabilities(mesh.capabilities(), mesh.shards().capabilities()) == "");
    CHECK(mesh.capability<DeviceMemory>() != nullptr);
  };
  run.run();
  CHECK(joined(run.errors) == "");
}

TEST_CASE(
    "[X04] a pipeline's shards train as its copies do, by each schedule, with recomputed activations and dropout") {
  const auto schedule =
      GENERATE(std::string("gpipe"), std::string("1f1b"), std::string("interleaved"), std::string("zero_bubble"));
  MeshRun copies("pipeline", 4, "dp=2,pp=2"), shards("pipeline", 4, "fsdp=2,pp=2");
  for (auto* each : {&copies, &shards}) {
    each->config.pipeline_schedule = schedule;
    if (schedule == "interleaved") each->config.pipeline_chunks = 2;
    each->config.activation_checkpointing = "type:TransformerBlock";
    each->config.fsdp_mapped = false;
    each->model.dropout = 0.2;
  }
  INFO(schedule);
  copies.run();
  shards.run();
  equals_one_rank(shards, copies);
  CHECK((largest_difference(shards.losses, one_rank().losses) > 1e-3));  // dropout there is none
}

TEST_CASE(
    "[X04] a rank of fsdp owns its share of what the other axes leave to it, and gathers a unit once in a step of a "
    "pipeline") {
  for (const std::string mesh : {"fsdp=2,tp=2", "fsdp=2,pp=2"}) {
    MeshRun run("pipeline", 4, mesh);
    run.config.max_steps = 3;
    run.config.fsdp_mapped = false;
    run.config.fsdp_wrap = "type:TransformerBlock";
    run.run();
    REQUIRE(joined(run.errors) == "");
    std::int64_t outside = 0, all = 0, owned = 0;
    for (const auto& item : Gpt(mesh_gpt_options())->named_parameters()) {
      all += item.value().numel();
      if (!item.key().starts_with("layers.")) outside += item.value().numel();
    }
    for (int rank = 0; rank < 4; ++rank) {
      INFO(mesh << " rank " << rank);
      CHECK((run.owned.at(rank) < all * 2 / 5));
      owned += run.owned.at(rank);
    }
    if (mesh == "fsdp=2,pp=2") CHECK((owned == all + outside));  // which both stages have
    CHECK((owned >= all));
    INFO(run.gathers.at(0) << " gathers");
    // Three steps and two evaluations in a row. A pipeline's 4 blocks come once for a step, and once for both
    // evaluations; else 8 come for the forward of each of 4 micro-batches, and again for its backward, which has the
    // last one, as soon as that is known.
    const auto gathers = run.gathers.at(0);
    if (mesh == "fsdp=2,pp=2") CHECK((gathers == 3 * 4 + 4));
    if (mesh == "fsdp=2,tp=2") CHECK((gathers >= 3 * 4 * (8 + 7) + 2 * 8 && gathers < 3 * 4 * (8 + 8) + 2 * 8));
  }
}

TEST_CASE("[X04] a state is the same whatever the mesh: one rank goes on from a mesh's, and a mesh from one rank's") {
  const auto mesh =
      GENERATE(std::string("dp=2,tp=2,pp=2"), std::string("dp=2,pp=4"), std::string("dp=1,tp=4,pp=2"),
               std::string("fsdp=2,tp=2,pp=2"), std::string("dp=2,fsdp=2,tp=2"), std::string("fsdp=4,pp=2"));
  if (!testing::in_share(0.25, mesh)) return;
  const auto from = [](const NamedTensors& state, const std::string& strategy, int ranks, const std::string& mesh) {
    MeshRun run(strategy, ranks, mesh);
    run.saved = state;
    run.config.max_steps = 3;
    run.run();
    REQUIRE(joined(run.errors) == "");
    return run.losses;
  };
  MeshRun first("pipeline", 8, mesh);
  first.run();
  REQUIRE(joined(first.errors) == "");
  const auto of_one = from(one_rank().state, "ddp", 1, "");
  CHECK((largest_difference(from(first.state, "ddp", 1, ""), of_one) < 1e-4));
  CHECK((largest_difference(from(one_rank().state, "pipeline", 8, mesh), of_one) < 1e-5));
  CHECK((largest_difference(from(first.state, "pipeline", 4, "dp=1,tp=2,pp=2"), of_one) < 1e-4));
  // The moments count: without them the steps are others.
  NamedTensors forgotten;
  for (const auto& [name, tensor] : one_rank().state)
    forgotten.emplace_back(name, name.find(".exp_avg") == std::string::npos ? tensor : at::zeros_like(tensor));
  CHECK((largest_difference(from(forgotten, "pipeline", 8, mesh), of_one) > 1e-3));
}

namespace {

void kill_at(SimulationOptions& simulation, const std::vector<int>& slots, const char* place, std::int64_t step) {
  simulation.recovery.enabled = true;
  simulation.recovery.max_restarts = 10;
  simulation.recovery.replace_timeout = std::chrono::seconds(60);
  simulation.faults = [=](int slot, int life) {
    const bool mine = life == 0 && std::find(slots.begin(), slots.end(), slot) != slots.end();
    return mine ? std::vector<PlacedFault>{{place, step, ChaosKind::kill, std::chrono::milliseconds(0)}}
                : std::vector<PlacedFault>{};
  };
}

/// Of a job that nothing happens to: kept, since many tests compare with the same one.
struct Outcome {
  decltype(MeshRun::losses) losses;
  decltype(MeshRun::state) state;
};
const Outcome& undisturbed(const std::string& strategy, int ranks, const std::string& mesh, const std::string& kind,
                           const std::function<void(Config&)>& configure) {
  static std::map<std::string, Outcome> known;
  const auto key = strategy + " " + std::to_string(ranks) + " " + mesh + " " + kind;
  if (const auto found = known.find(key); found != known.end()) return found->second;
  MeshRun run(strategy, ranks, mesh);
  configure(run.config);
  run.run();
  REQUIRE(joined(run.errors) == "");
  return known[key] = {run.losses, run.state};
}

}  // namespace

TEST_CASE("[X04] a lost rank is healed by its like in the other copy, and no step is lost") {
  const auto [strategy, ranks, mesh, slot] =
      GENERATE(table<std::string, int, std::string, int>({{"pipeline", 4, "dp=2,pp=2", 0},
                                                          {"pipeline", 4, "dp=2,pp=2", 3},
                                                          {"tensor_parallel", 4, "dp=2,tp=2", 1},
                                                          {"pipeline", 8, "dp=2,tp=2,pp=2", 6}}));
  const auto place = GENERATE("forward", "backward", "reduced", "voted", "committed", "optimizer");
  if (!testing::in_share(0.25, strategy + mesh + std::to_string(slot) + place)) return;
  const auto configure = [](Config& config) { config.max_steps = 5; };
  MeshRun run(strategy, ranks, mesh);
  configure(run.config);
  run.simulate_with = [&, slot = slot](SimulationOptions& simulation) { kill_at(simulation, {slot}, place, 2); };
  INFO(mesh << " rank " << slot << " killed at " << place);
  run.run();
  const auto& expected = undisturbed(strategy, ranks, mesh, "5 steps", configure);
  REQUIRE(joined(run.errors) == "");
  CHECK((run.generations == 2));
  CHECK((run.losses == expected.losses));  // to the bit
  CHECK((largest_difference(run.state, expected.state) == 0));
}

TEST_CASE("[X04] a rank that is healed joins stages that the others have measured") {
  MeshRun run("pipeline", 8, "dp=2,tp=2,pp=2");
  run.config.pipeline_costs = "measured";
  run.config.sequence_parallel = true;
  run.simulate_with = [](SimulationOptions& simulation) { kill_at(simulation, {6}, "reduced", 2); };
  run.run();
  CHECK((run.generations == 2));
  equals_one_rank(run, one_rank());
}

TEST_CASE("[X04] what forward and backward wait for other ranks is told, whatever they wait for") {
  const auto [strategy, mesh] = GENERATE(table<std::string, std::string>(
      {{"fsdp", ""}, {"tensor_parallel", "tp=2"}, {"pipeline", "pp=2"}, {"tensor_parallel", "fsdp=2"}}));
  MeshRun run(strategy, 2, mesh);
  run.config.fsdp_mapped = false;
  run.config.fsdp_prefetch = 0;
  INFO(strategy << " " << mesh);
  run.run();
  REQUIRE(joined(run.errors) == "");
  for (int rank = 0; rank < 2; ++rank) {
    CHECK((run.waited_ms.at(rank) > 0));
    CHECK((std::abs(run.inside_ms.at(rank) - run.waited_ms.at(rank)) < 1e-6 * run.waited_ms.at(rank)));
  }
}

TEST_CASE("[X04] a lost rank of fsdp comes back from a copy of its shard, and all ranks go back to one step") {
  const auto [ranks, mesh, slot] = GENERATE(table<int, std::string, int>(
      {{4, "fsdp=2,pp=2", 3}, {4, "fsdp=2,tp=2", 1}, {8, "fsdp=2,tp=2,pp=2", 6}, {8, "dp=2,fsdp=2,pp=2", 0}}));
  const auto place = GENERATE("forward", "reduced", "committed", "snapshot");
  const bool mapped = GENERATE(true, false);
  if (!testing::in_share(0.25, mesh + place + (mapped ? "mapped" : ""))) return;
  const auto configure = [mapped = mapped](Config& config) {
    config.max_steps = 5;
    config.fsdp_mapped = mapped;
    config.snapshot_every = 2;
  };
  MeshRun run("pipeline", ranks, mesh);
  configure(run.config);
  run.simulate_with = [&, slot = slot](SimulationOptions& simulation) { kill_at(simulation, {slot}, place, 2); };
  INFO(mesh << (mapped ? " mapped" : " gathered") << ", rank " << slot << " killed at " << place);
  run.run();
  const auto& expected = undisturbed("pipeline", ranks, mesh, mapped ? "mapped" : "gathered", configure);
  REQUIRE(joined(run.errors) == "");
  CHECK((run.generations == 2));
  CHECK((run.losses == expected.losses));  // to the bit
  CHECK((largest_difference(run.state, expected.state) == 0));
}

TEST_CASE(
    "[X04] a lost rank whose part nobody else has ends the job with state lost, so that it begins anew from its "
    "checkpoint") {
  const auto [mesh, slots] =
      GENERATE(table<std::string, std::vector<int>>({{"pp=4", {2}}, {"tp=2,pp=2", {0}}, {"dp=2,pp=2", {0, 1}}}));
  MeshRun run("pipeline", 4, mesh);
  run.simulate_with = [&, slots = slots](SimulationOptions& simulation) { kill_at(simulation, slots, "forward", 2); };
  INFO(mesh);
  run.run();
  REQUIRE_FALSE(run.errors.empty());
  REQUIRE(run.over);
  CHECK((run.over->report.code == ErrorCode::state_lost));
  CHECK_THAT(run.over->report.cause, Catch::Contains("no other rank holds the part of the model that the lost rank"));
}

TEST_CASE("[X04] a rank of fsdp and its buddy that die together come back from the other copy of their shards") {
  MeshRun run("pipeline", 4, "dp=2,fsdp=2"), undisturbed("pipeline", 4, "dp=2,fsdp=2");
  for (auto* each : {&run, &undisturbed}) {
    each->config.backend = "gloo";  // no memory in common: a rank has its own copy and one other's
    each->config.max_steps = 5;
    each->config.snapshot_every = 2;
  }
  run.simulate_with = [](SimulationOptions& simulation) { kill_at(simulation, {1, 2}, "forward", 3); };
  run.run();
  undisturbed.run();
  REQUIRE(joined(run.errors) == "");
  CHECK((run.losses == undisturbed.losses));
}

TEST_CASE("[X04] a mesh refuses a saved moment that has not the shape of its parameter") {
  const auto [ranks, mesh] = GENERATE(table<int, std::string>({{2, "tp=2"}, {4, "fsdp=2,tp=2"}}));
  const auto moment =
      GENERATE(as<std::vector<std::int64_t>>{}, std::vector<std::int64_t>{8}, std::vector<std::int64_t>{8, 9});
  MeshRun run("tensor_parallel", ranks, mesh);
  for (const auto& [name, tensor] : one_rank().state) {
    const bool cut = name == "optimizer.layers.0.attention.out.weight.exp_avg";
    run.saved.emplace_back(name, cut ? torch::zeros(moment) : tensor);
  }
  run.run();
  REQUIRE_FALSE(run.errors.empty());
  CHECK_THAT(run.errors.front(),
             Catch::Contains("layers.0.attention.out.weight.exp_avg does not have the shape of its parameter"));
}

TEST_CASE("[X04] without copies a lost rank of fsdp ends the job with state lost, and says what keeps them") {
  MeshRun run("pipeline", 4, "fsdp=2,pp=2");
  run.config.snapshot_every = 0;
  run.simulate_with = [](SimulationOptions& simulation) { kill_at(simulation, {1}, "forward", 2); };
  run.run();
  REQUIRE(run.over);
  CHECK((run.over->report.code == ErrorCode::state_lost));
  CHECK_THAT(run.over->report.remedy, Catch::Contains("set snapshot_every to keep copies"));
}

TEST_CASE("[X04] a mesh whose ranks are not there any more ends with state lost, and says what it needs") {
  MeshRun run("pipeline", 4, "dp=2,pp=2");
  run.simulate_with = [](SimulationOptions& simulation) {
    kill_at(simulation, {3}, "forward", 2);
    simulation.recovery.max_restarts = 0;
    simulation.recovery.replace_timeout = std::chrono::milliseconds(200);
  };
  run.run();
  REQUIRE(run.over);
  CHECK((run.over->report.code == ErrorCode::state_lost));
  CHECK_THAT(run.over->report.cause, Catch::Contains("the mesh dp=2,tp=1,pp=2 needs 4 ranks, and 3 are left"));
}

TEST_CASE(
    "[X02] whoever is slow when, a pipeline never deadlocks and has the same bits, under 40 random schedules of its "
    "ranks",
    "[share]") {
  static const std::vector<std::string> places{"data", "forward", "collective", "backward", "reduced",
                                               "vote", "voted",   "committed",  "optimizer"};
  for (const auto& [schedule, chunks] :
       std::vector<std::pair<std::string, int>>{{"gpipe", 1}, {"1f1b", 1}, {"interleaved", 2}, {"zero_bubble", 1}}) {
    const auto trained = [&, schedule = schedule, chunks = chunks](int seed) {
      MeshRun run("pipeline", 4);
      run.config.max_steps = 3;
      run.config.pipeline_schedule = schedule;
      run.config.pipeline_chunks = chunks;
      if (seed > 0) {
        run.simulate_with = [seed](SimulationOptions& simulation) {
          simulation.recovery.enabled = true;
          simulation.faults = [seed](int slot, int) {
            std::mt19937_64 random(static_cast<std::uint64_t>(seed * 16 + slot));
            std::vector<PlacedFault> faults;
            for (int i = 0; i < 3; ++i) {
              const auto& place = places[random() % places.size()];
              faults.push_back({place, static_cast<std::int64_t>(random() % 3), ChaosKind::stop,
                                std::chrono::milliseconds(1 + random() % 20)});
            }
            return faults;
          };
        };
      }
      run.run();
      INFO(schedule << ", seed " << seed);
      CHECK((joined(run.errors) == ""));
      CHECK((run.generations == 1));
      return run.losses;
    };
    const auto undisturbed = trained(0);
    for (int seed = 1; seed <= 10; ++seed) CHECK((trained(seed) == undisturbed));
  }
}

namespace {

std::string mesh_error(const std::function<void(MeshRun&)>& set, int ranks = 2,
                       const std::string& strategy = "pipeline") {
  MeshRun run(strategy, ranks);
  run.config.max_steps = 1;
  set(run);
  run.run();
  return run.errors.empty() ? "" : run.errors.front();
}

std::atomic<int> square_forwards{0};  // of all ranks

struct SquareImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  at::Tensor forward(const at::Tensor& x) {
    ++square_forwards;
    return torch::tanh(linear(x));
  }
};
TROUPE_BLOCK(Square);

struct PairImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  std::pair<at::Tensor, int> forward(const at::Tensor& x) { return {linear(x), 1}; }
};
TROUPE_BLOCK(Pair);

/// Three blocks, called in the order `calls`.
struct ChainImpl : torch::nn::Module {
  std::vector<int> calls;
  Square a = register_module("a", Square()), b = register_module("b", Square()), c = register_module("c", Square());
  torch::nn::Embedding embed = register_module("embed", torch::nn::Embedding(12, 4));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 12));
  explicit ChainImpl(std::vector<int> order) : calls(std::move(order)) {}
  at::Tensor forward(const at::Tensor& ids) {
    auto x = embed(ids);
    for (const int call : calls) x = call == 0 ? a(x) : call == 1 ? b(x) : c(x);
    return head(x);
  }
};

/// Two blocks that return more than a tensor.
struct PairsImpl : torch::nn::Module {
  Pair a = register_module("a", Pair()), b = register_module("b", Pair());
  torch::nn::Embedding embed = register_module("embed", torch::nn::Embedding(12, 4));
  at::Tensor forward(const at::Tensor& ids) {
    return at::cat({b(a(embed(ids)).first).first, embed(ids), embed(ids)}, -1);
  }
};

void use_pairs(MeshRun& run) {
  run.make = [] { return std::make_shared<PairsImpl>(); };
  run.forward = [](torch::nn::Module& m, const at::Tensor& ids) { return m.as<PairsImpl>()->forward(ids); };
}

void use_chain(MeshRun& run, const std::vector<int>& calls) {
  run.make = [calls] { return std::make_shared<ChainImpl>(calls); };
  run.forward = [](torch::nn::Module& m, const at::Tensor& ids) { return m.as<ChainImpl>()->forward(ids); };
}

}  // namespace

namespace {

/// A block with a buffer that each step moves.
struct CounterImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  at::Tensor calls = register_buffer("calls", torch::zeros({2}));
  at::Tensor forward(const at::Tensor& x) {
    if (is_training()) {
      torch::NoGradGuard no_grad;
      calls.add_(1);
    }
    return torch::tanh(linear(x)) + 0.01 * calls.sum();
  }
};
TROUPE_BLOCK(Counter);

/// Four of them, one frozen, in a block, some of whose own parameters are outside of all stages.
struct RootImpl : torch::nn::Module {
  std::vector<Counter> layers;
  torch::nn::Embedding embed = register_module("embed", torch::nn::Embedding(12, 4));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 12));
  at::Tensor nothing = register_parameter("nothing", torch::zeros({0, 3}));
  RootImpl() {
    for (int i = 0; i < 4; ++i) layers.emplace_back(register_module("layer" + std::to_string(i), Counter()));
    for (auto& parameter : layers[1]->parameters()) parameter.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& ids) {
    auto x = embed(ids);
    for (auto& layer : layers) x = layer(x);
    return head(x);
  }
};
TROUPE_BLOCK(Root);

void use_root(MeshRun& run) {
  run.make = [] { return std::make_shared<Block<RootImpl>>(); };
  run.forward = [](torch::nn::Module& m, const at::Tensor& ids) {
    return dynamic_cast<Block<RootImpl>&>(m).forward(ids);
  };
}

}  // namespace

TEST_CASE(
    "[X04] shards of a stage may be units of any kind, with buffers, frozen parameters and a root that is a block") {
  const auto [ranks, mesh] =
      GENERATE(table<int, std::string>({{2, "fsdp=2"}, {4, "fsdp=2,pp=2"}, {8, "dp=2,fsdp=2,pp=2"}}));
  const std::string wrap = GENERATE("block", "none", "name:layer2");
  const bool dies = GENERATE(false, true);
  MeshRun alone("ddp", 1), run("pipeline", ranks, mesh);
  for (auto* each : {&alone, &run}) use_root(*each);
  run.config.fsdp_mapped = false;
  run.config.fsdp_wrap = wrap;
  run.config.snapshot_every = 1;
  run.config.save_every = -1;
  if (dies) run.simulate_with = [](SimulationOptions& simulation) { kill_at(simulation, {1}, "reduced", 2); };
  INFO(mesh << " " << wrap << (dies ? ", rank 1 killed" : ""));
  alone.run();
  run.run();
  // Of a parameter without elements no rank has a slice, nor moments of it.
  std::erase_if(alone.state, [](const auto& entry) { return entry.first.starts_with("optimizer.nothing."); });
  if (dies) run.norms = alone.norms, run.samples = alone.samples;  // those of the step that came twice
  equals_one_rank(run, alone);
  for (const auto& [name, tensor] : alone.state) {
    if (name.ends_with(".calls")) CHECK((tensor[0].item<float>() == 24));  // steps x micro-batches
  }
}

TEST_CASE("[X04] a mesh without fsdp saves the buffers of its blocks, each once") {
  const auto [ranks, mesh] = GENERATE(table<int, std::string>({{2, "pp=2"}, {4, "dp=2,pp=2"}}));
  MeshRun run("pipeline", ranks, mesh);
  use_root(run);
  run.config.save_every = -1;
  run.run();
  REQUIRE(joined(run.errors) == "");
  int buffers = 0;
  for (const auto& [name, tensor] : run.state) {
    if (!name.ends_with(".calls")) continue;
    ++buffers;
    CHECK((tensor[0].item<float>() == 24));  // steps x micro-batches
  }
  CHECK(buffers == 4);
}

namespace {

/// A block in which another one is called where that is said.
struct SometimesImpl : torch::nn::Module {
  bool calls = true;
  Square square = register_module("square", Square());
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  at::Tensor forward(const at::Tensor& x) {
    const auto y = torch::tanh(linear(x));
    return calls ? square(y) : y;
  }
};
TROUPE_BLOCK(Sometimes);

struct SometimesChainImpl : torch::nn::Module {
  std::vector<Sometimes> layers;
  torch::nn::Embedding embed = register_module("embed", torch::nn::Embedding(12, 4));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 12));
  SometimesChainImpl() {
    for (int i = 0; i < 4; ++i) layers.emplace_back(register_module("layer" + std::to_string(i), Sometimes()));
  }
  at::Tensor forward(const at::Tensor& ids) {
    auto x = embed(ids);
    for (auto& layer : layers) x = layer(x);
    return head(x);
  }
};

}  // namespace

TEST_CASE(
    "[X04] [F09] units that the ranks of one shard do not all use, in a pipeline: no deadlock, and the numbers of "
    "shards that are mapped") {
  const auto schedule = GENERATE(std::string("gpipe"), std::string("1f1b"), std::string("interleaved"));
  MeshRun gathered("pipeline", 4, "fsdp=2,pp=2"), mapped("pipeline", 4, "fsdp=2,pp=2");
  for (auto* each : {&gathered, &mapped}) {
    each->make = [] { return std::make_shared<SometimesChainImpl>(); };
    each->forward = [](torch::nn::Module& m, const at::Tensor& ids) {
      return m.as<SometimesChainImpl>()->forward(ids);
    };
    each->config.pipeline_schedule = schedule;
    if (schedule == "interleaved") each->config.pipeline_chunks = 2;
    each->config.fsdp_mapped = each == &mapped;
    // In the first step one of the two ranks that have a stage in common calls no inner block, in the second the other,
    // then both do.
    each->between = [](Rank& rank, torch::nn::Module& model) {
      const bool calls = rank.steps_done() % 3 == 2 || rank.steps_done() % 2 == rank.rank() % 2;
      for (auto& layer : model.as<SometimesChainImpl>()->layers) layer->calls = calls;
    };
    each->run();
    INFO(schedule);
    CHECK((joined(each->errors) == ""));
  }
  CHECK((gathered.losses == mapped.losses));
  CHECK((gathered.held_out == mapped.held_out));
  CHECK((gathered.generations == 1));
}

TEST_CASE(
    "[X02] each block of a pipeline runs on one rank, once for a micro-batch, and again where activations are "
    "recomputed") {
  const auto forwards = [](const std::string& recomputed) {
    MeshRun run("pipeline", 2);
    run.config.max_steps = 1;
    run.config.activation_checkpointing = recomputed;
    use_chain(run, {0, 1, 2});
    square_forwards = 0;
    run.run();
    CHECK((joined(run.errors) == ""));
    return square_forwards.load();
  };
  constexpr int kBlocks = 3, kMicroBatches = 4, kEvaluations = 2;
  CHECK((forwards("none") == kBlocks * (kMicroBatches + kEvaluations)));
  CHECK((forwards("type:Square") == kBlocks * (2 * kMicroBatches + kEvaluations)));
}

namespace {

// A rule that needs a whole matrix, as Muon's does.
struct WholeRule final : Optimizer {
  std::string name() const override { return "muon"; }
  void step(double) override {}
  NamedTensors state() override { return {}; }
  void load_state(const NamedTensors&) override {}
  const std::vector<ParameterGroup>& groups() const override { return groups_; }
  std::vector<ParameterGroup> groups_;
};

}  // namespace

TEST_CASE("[X02] an optimizer that needs whole parameters is refused if ranks share layers or have stages") {
  for (const std::string strategy : {"tensor_parallel", "pipeline"}) {
    const auto set = [&](MeshRun& r) {
      r.config.mesh = strategy == "pipeline" ? "pp=2" : "tp=2";
      r.between = [](Rank& rank, torch::nn::Module&) {
        WholeRule rule;
        system_of(rank).compute().strategy().shard_optimizer(rule);
      };
    };
    const auto error = mesh_error(set, 2, strategy);
    CHECK_THAT(error, Catch::Contains("muon updates whole parameters only"));
  }
}

TEST_CASE("[X02] what a pipeline can't run is refused on one line with the reason") {
  const auto refused = [](const std::function<void(MeshRun&)>& set, int ranks = 2) { return mesh_error(set, ranks); };
  CHECK((refused([](MeshRun& r) { use_chain(r, {0, 1, 2}); }).empty()));
  CHECK_THAT(refused([](MeshRun& r) {
               use_chain(r, {0, 2, 1});
             }),
             Catch::Contains("calls block c, but block b was expected"));
  CHECK_THAT(refused([](MeshRun& r) { use_chain(r, {0, 1, 1, 2}); }), Catch::Contains("calls block b, but block c"));
  CHECK_THAT(refused([](MeshRun& r) { use_chain(r, {0, 1}); }), Catch::Contains("did not call block c"));
  CHECK_THAT(refused([](MeshRun& r) { r.model.n_layer = 1; }), Catch::Contains("1 blocks can't be cut into 2 stages"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.comm_hook = "bf16"; }), Catch::Contains("comm_hook"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.sync_batchnorm = true; }), Catch::Contains("sync_batchnorm"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.pipeline_schedule = "1f2b"; }), Catch::Contains("no schedule '1f2b'"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.mesh = "dp=3"; }), Catch::Contains("the job has 2"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.sequence_parallel = true; }), Catch::Contains("shares no layers"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.mesh = "tp=2", r.config.tensor_plan = ""; }),
             Catch::Contains("no plan says which"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.mesh = "tp=2", r.config.pipeline_chunks = 2; }),
             Catch::Contains("has no pipeline"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.mesh = "tp=2", r.model.n_head = 1; }),
             Catch::Contains("1 heads can't be divided"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.mesh = "tp=2", r.model.vocab_size = 13; }),
             Catch::Contains("tokens.weight has 13"));
  CHECK_THAT(refused([](MeshRun& r) { r.make = [] { return std::make_shared<testing::SmallMlpImpl>(); }; }),
             Catch::Contains("the model has no blocks"));
  CHECK_THAT(refused([](MeshRun& r) {
               r.make = [] {
                 auto model = std::make_shared<ChainImpl>(std::vector<int>{0, 1, 2});
                 model->register_buffer("counter", torch::zeros({1}));
                 return model;
               };
             }),
             Catch::Contains("buffer counter is outside of all blocks"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.pipeline_costs = "1,x"; }),
             Catch::Contains("'x' is neither parameters nor measured"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.pipeline_costs = "1,2"; }),
             Catch::Contains("2 costs, and the model has 8 blocks"));
  CHECK_THAT(refused([](MeshRun& r) { use_pairs(r); }), Catch::Contains("does not return one tensor"));
  CHECK_THAT(mesh_error([](MeshRun& r) { r.config.mesh = "dp=2"; }, 2, "zero1"),
             Catch::Contains("strategy zero1 has no mesh"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.mesh = "fsdp=2", r.config.fsdp_mode = "hybrid_shard"; }),
             Catch::Contains("'hybrid_shard' does not fit the mesh dp=1,fsdp=2,tp=1,pp=1"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.mesh = "fsdp=2", r.config.param_dtype = "bfloat16"; }),
             Catch::Contains("param_dtype"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.mesh = "fsdp=2", r.config.fsdp_shard_size = 4; }),
             Catch::Contains("fsdp_shard_size: 4 does not fit the mesh"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.mesh = "fsdp=2,pp=2", r.config.fsdp_sync_micro_batches = true; }, 4),
             Catch::Contains("fsdp_sync_micro_batches: a pipeline has several micro-batches"));
  CHECK_THAT(refused([](MeshRun& r) { r.config.mesh = "fsdp=2,pp=2", r.config.pipeline_costs = "measured"; }, 4),
             Catch::Contains("pipeline_costs: 'measured' runs all blocks"));
  for (const auto& text : {refused([](MeshRun& r) {
                             use_chain(r, {0, 2, 1});
                           }),
                           refused([](MeshRun& r) { r.config.mesh = "dp=3"; })})
    CHECK((text.find('\n') == std::string::npos));
}

TEST_CASE("[X02] a loop of one's own may hand over a step's micro-batches whatever the strategy") {
  MeshRun run("ddp", 2);
  run.steps_at_once = true;
  run.run();
  equals_one_rank(run, one_rank());
  // Random numbers of LibTorch's own are those of the loop that calls backward.
  MeshRun one_by_one("ddp", 1), at_once("ddp", 1);
  at_once.steps_at_once = true;
  for (auto* each : {&one_by_one, &at_once}) {
    each->forward = [](torch::nn::Module& m, const at::Tensor& ids) {
      return torch::dropout(m.as<GptImpl>()->forward(ids), 0.1, m.is_training());
    };
    each->run();
  }
  CHECK((at_once.losses == one_by_one.losses));
  const auto errors = testing::run_program(2, run.config, [&](Rank& rank) {
    auto model = rank.distribute([] { return Gpt(mesh_gpt_options()); });
    rank.run_micro_batches({}, {});
  });
  CHECK_THAT(errors.at(0), Catch::Contains("given 0 batches, and a step has 4"));
}

TEST_CASE("[X02] a loop of one's own that calls backward is told what to call in a pipeline") {
  MeshRun run("pipeline", 2);
  const auto errors = testing::run_program(2, run.config, [&](Rank& rank) {
    auto model = rank.distribute([] { return Gpt(mesh_gpt_options()); });
    rank.backward(torch::zeros({}).requires_grad_(true));
  });
  CHECK_THAT(errors.at(0), Catch::Contains("call rank.run_micro_batches"));
}
