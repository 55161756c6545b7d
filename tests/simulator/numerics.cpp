#include "tests/simulator/numerics.hpp"

#include <cstring>
#include <limits>
#include <map>
#include <sstream>
#include <tuple>

#include <nlohmann/json.hpp>

#include "actors/block/block.hpp"
#include "actors/simulator/draw.hpp"
#include "launch/launcher/start_over.hpp"
#include "launch/network/agent_link.hpp"
#include "launch/program/job.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

namespace troupe::simulator {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kSamples = 96, kBatch = 24, kStepsPerEpoch = kSamples / kBatch, kEpochs = 4,
                       kSteps = kEpochs * kStepsPerEpoch;
constexpr std::int64_t kSaveEvery = 4;

struct CellImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(16, 16));
  troupe::nn::Dropout dropout = register_module("dropout", troupe::nn::Dropout(0.2));
  at::Tensor forward(const at::Tensor& x) { return dropout(torch::tanh(linear(x))); }
};
TROUPE_BLOCK(Cell);

Config config_of(const NumericsJob& job, const std::string& folder) {
  Config config;
  config.ranks = job.ranks;
  config.strategy = job.strategy;
  config.backend = job.backend;
  config.comm_hook = job.comm_hook;
  config.bucket_cap_mb = config.first_bucket_mb = 1e-3;  // several buckets
  config.batch_size = kBatch;
  config.epochs = kEpochs;
  config.lr = 0.05;
  config.on_not_finite = "skip";
  config.save_every = kSaveEvery;
  config.snapshot_every = 2;
  config.log_interval = 1;
  config.checkpoint_dir = folder + "/checkpoints";
  config.run_dir = folder + "/run";
  config.collective_timeout = 20;
  return config;
}

Job program_of(const NumericsJob& job, const Rank& rank) {
  Job program;
  program.model = [](const Config&) {
    torch::nn::Sequential model(torch::nn::Linear(6, 16), troupe::nn::BatchNorm(16));
    for (int i = 0; i < 3; ++i) model->push_back(Cell());
    model->push_back(torch::nn::Linear(16, 2));
    return model.ptr();
  };
  program.data = [](const Config&) {
    const auto input = torch::randn({kSamples + 24, 6}, at::detail::createCPUGenerator(3));
    const auto target = (input.sum(1) > 0).to(torch::kLong);
    return Datasets{std::make_shared<TensorDataset>(input.narrow(0, 0, kSamples), target.narrow(0, 0, kSamples)),
                    std::make_shared<TensorDataset>(input.narrow(0, kSamples, 24), target.narrow(0, kSamples, 24))};
  };
  program.loss = [&rank, nan_step = job.nan_step](torch::nn::Module& model, const Batch& batch, const Config&) {
    auto loss =
        torch::nn::functional::cross_entropy(model.as<torch::nn::SequentialImpl>()->forward(batch.input), batch.target);
    if (model.is_training() && rank.is_main() && batch.epoch * kStepsPerEpoch + batch.step == nan_step)
      loss = loss * std::numeric_limits<double>::quiet_NaN();
    return Loss(loss);
  };
  return program;
}

/// What is left of a job, on disk.
struct Remains {
  std::map<std::int64_t, std::vector<std::string>> losses;  // by step; each time it was written
  TrainingState state;
};

Remains remains_of(const Config& config) {
  Remains remains;
  std::istringstream lines(testing::read_text(config.run_dir + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto entry = nlohmann::json::parse(line);
    if (entry["kind"] == "train")
      remains.losses[entry["step"].get<std::int64_t>()].push_back(entry["loss_metrics/global_avg_loss"].dump());
  }
  remains.state = load_checkpoint(config.checkpoint_dir, "latest").state;
  return remains;
}

std::string difference(const TrainingState& state, const TrainingState& expected) {
  if (state.step != expected.step) return "the last checkpoint is of step " + std::to_string(state.step);
  if (state.tensors.size() != expected.tensors.size()) return "the last checkpoint has other tensors";
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const auto& [name, tensor] = state.tensors[i];
    const auto& [known, other] = expected.tensors[i];
    if (name != known || tensor.nbytes() != other.nbytes() ||
        std::memcmp(tensor.contiguous().data_ptr(), other.contiguous().data_ptr(), tensor.nbytes()) != 0)
      return "the last checkpoint's " + name + " has other bits";
  }
  return {};
}

std::string difference(const Remains& found, const Remains& expected, bool once) {
  for (const auto& [step, losses] : expected.losses) {
    const auto mine = found.losses.find(step);
    if (mine == found.losses.end()) return "step " + std::to_string(step) + " is not in the metrics";
    if (once && mine->second.size() > losses.size())
      return "step " + std::to_string(step) + " is in the metrics more than once";
    for (const auto& loss : mine->second) {
      if (loss != losses.front())
        return "the loss of step " + std::to_string(step) + " is " + loss + ", undisturbed " + losses.front();
    }
  }
  return difference(found.state, expected.state);
}

SimulationOptions simulation_of(const NumericsJob& job, const Config& config) {
  auto simulation = testing::simulation_of(config);
  simulation.recovery.enabled = true;
  simulation.recovery.max_restarts = 100;
  simulation.recovery.replace_timeout = 60s;  // as many ranks as before, for the same bits
  simulation.recovery.fence_after = 2s;
  simulation.recovery.hang_after = 20s;
  simulation.faults = [&job](int slot, int life) {
    std::vector<PlacedFault> faults;
    for (const auto& fault : job.faults) {
      if (fault.slot == slot && fault.life == life) faults.push_back(fault.fault);
    }
    return faults;
  };
  return simulation;
}

/// Runs it until it is done, also from its last checkpoint again. What failed it, or empty.
std::string run_to_end(const NumericsJob& job, Config config, NumericsOutcome& outcome,
                       const std::function<void(const std::string&)>& log) {
  auto simulation = simulation_of(job, config);
  simulation.log = [&](const std::string& line) {
    if (line.starts_with("generation ") && line.find(" is interrupted") == std::string::npos) ++outcome.generations;
    if (log) log(line);
  };
  std::string failure;
  const int code = run_until_kept(simulation.recovery, [&](int starts_over) {
    if (starts_over > 0) {
      simulation.faults = {};
      if (!list_checkpoints(config.checkpoint_dir).empty()) config.resume = "latest";
    }
    outcome.starts = starts_over + 1;
    simulation.rank.begins = starts_over == 0;
    failure.clear();
    std::optional<JobOver> over;
    const auto body = [&job](Rank& rank) { train(program_of(job, rank), rank); };
    const auto failed = [&](int slot, const ErrorReport& report) {
      failure += "slot " + std::to_string(slot) + ": " + report.to_string() + "; ";
    };
    const int status = testing::run_simulation(config, simulation, body, failed, &over);
    return LaunchOutcome{status, lost_state(over, 0)};
  });
  return code == 0 ? std::string() : "exit code " + std::to_string(code) + ": " + failure;
}

const Remains& undisturbed(NumericsJob job) {
  static std::map<std::tuple<std::string, std::string, int, std::int64_t, std::string>, Remains> known;
  const auto key = std::make_tuple(job.strategy, job.backend, job.ranks, job.nan_step, job.comm_hook);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  job.faults.clear();
  const testing::ScratchDirectory folder;
  const auto config = config_of(job, folder.path());
  NumericsOutcome outcome;
  if (const auto failure = run_to_end(job, config, outcome, {}); !failure.empty())
    throw std::runtime_error("undisturbed: " + failure);
  return known[key] = remains_of(config);
}

}  // namespace

std::string NumericsFault::to_string() const {
  auto text = name_of(fault.kind) + " rank " + std::to_string(slot) + " at '" + fault.place + "' of step " +
              std::to_string(fault.step);
  if (fault.lasts.count() > 0) text += " for " + std::to_string(fault.lasts.count()) + " ms";
  return life == 0 ? text : text + ", in its life " + std::to_string(life);
}

NumericsJob numerics_job_of_seed(std::uint64_t seed) {
  static const std::vector<std::string> places{"data", "forward", "backward",  "buckets",   "collective", "reduced",
                                               "vote", "voted",   "committed", "optimizer", "save",       "heal"};
  static const std::vector<ChaosKind> others{ChaosKind::stop, ChaosKind::slow, ChaosKind::net, ChaosKind::disk};
  Draw draw(seed, "numerics");
  NumericsJob job;
  job.strategy = draw.once_in(2) ? "fsdp" : "ddp";
  job.backend = draw.once_in(3) ? "gloo" : "shm";
  job.ranks = static_cast<int>(draw.in(2, 4));
  if (draw.once_in(4)) job.nan_step = 6;
  job.faults.resize(static_cast<std::size_t>(draw.in(1, 4)));
  for (auto& [slot, life, fault] : job.faults) {
    slot = static_cast<int>(draw.in(0, job.ranks - 1));
    fault.step = draw.in(0, kSteps - 1);
    fault.place = places[draw.next() % places.size()];
    // Ranks die more often than all else.
    fault.kind = draw.once_in(3) ? others[draw.next() % others.size()] : ChaosKind::kill;
    if (fault.kind == ChaosKind::stop)
      fault.lasts = std::chrono::milliseconds(draw.once_in(6) ? 3'000 : draw.in(20, 200));
    if (fault.kind == ChaosKind::slow) fault.lasts = std::chrono::milliseconds(draw.in(100, 500));
    if (fault.place == "save") fault.step = draw.in(1, kSteps / kSaveEvery) * kSaveEvery;
    // Where, with luck, a newcomer comes in: that one, or a donor.
    if (fault.place == "heal") fault.step = job.faults.front().fault.step + draw.in(0, 1);
    const bool after_a_death = slot == job.faults.front().slot && &fault != &job.faults.front().fault;
    if (after_a_death) life = static_cast<int>(draw.in(0, 1));
  }
  return job;
}

NumericsOutcome run_numerics(const NumericsJob& job, const std::function<void(const std::string&)>& log) {
  NumericsOutcome outcome;
  const auto& expected = undisturbed(job);
  const testing::ScratchDirectory folder;
  const auto config = config_of(job, folder.path());
  auto failure = run_to_end(job, config, outcome, log);
  if (failure.empty()) failure = difference(remains_of(config), expected, outcome.starts == 1 && job.strategy == "ddp");
  if (!failure.empty()) outcome.violation = failure;
  return outcome;
}

}  // namespace troupe::simulator
