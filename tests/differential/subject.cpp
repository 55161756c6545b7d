#include "tests/differential/subject.hpp"

#include <cstdio>
#include <sstream>

#include "launch/launcher/start_over.hpp"
#include "launch/network/agent_link.hpp"
#include "launch/process/formatted.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tests/differential/life.hpp"
#include "tests/differential/processes.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/thread_nccl.hpp"

namespace troupe::differential {
namespace {

using namespace std::chrono_literals;

bool set_fsdp_mode(Config& config, const std::string& strategy) {
  for (const char* mode : {"shard_grad_op", "hybrid_shard", "no_shard"}) {
    if (strategy != mode) continue;
    config.strategy = "fsdp";
    config.fsdp_mode = mode;
    return true;
  }
  return false;
}

Config config_of(const Job& job, const std::string& folder) {
  Config config;
  config.ranks = job.ranks;
  config.backend = job.device == "cpu" ? job.backend : "auto";
  config.strategy = job.strategy;
  if (set_fsdp_mode(config, job.strategy) && config.fsdp_mode == "hybrid_shard") config.fsdp_shard_size = 2;
  if (job.strategy == "fsdp/gathered") {
    config.strategy = "fsdp";
    config.fsdp_mapped = false;
  }
  if (const auto plan = job.strategy.find('/'); plan != std::string::npos && !job.strategy.starts_with("fsdp/")) {
    config.strategy = job.strategy.substr(0, plan);  // pipeline or tensor_parallel, and its mesh
    config.mesh = job.strategy.substr(plan + 1);
  }
  if (job.strategy.find("tp=") != std::string::npos || job.strategy == "tensor_parallel") {
    if (job.model == "tokens") config.tensor_plan = "words: vocabulary";
    for (int c = 0; c < job.cells; ++c) {
      const auto cell = ", cell" + std::to_string(c);
      if (job.model == "tokens") config.tensor_plan += cell + ".qkv: gather";
      config.tensor_plan += cell + ".linear: gather";
    }
    if (config.tensor_plan.starts_with(", ")) config.tensor_plan.erase(0, 2);
  }
  config.staleness = job.staleness;
  config.pipeline_schedule = job.stages;
  config.fsdp_wrap = job.units;
  config.server_shares = job.server_shares;
  config.num_workers = job.workers;
  config.fsdp_sync_micro_batches = job.shards == "each";
  config.fsdp_cpu_offload = job.shards == "offload";
  if (job.shards == "one_by_one") config.fsdp_prefetch = 0;
  config.seed = static_cast<std::uint64_t>(job.seed);
  config.batch_size = job.batch_size;
  config.grad_accum_steps = job.accumulate;
  config.drop_last = job.drop_last;
  config.shuffle = job.shuffle;
  config.balance = job.balance;
  if (job.balance == "weights") {
    config.balance = "1";
    for (int r = 1; r < job.ranks; ++r) config.balance += "," + std::to_string(r + 1);
  }
  config.epochs = epochs_of(job);
  config.max_steps = job.max_steps;
  config.optimizer = is_torch(job) ? "sgd" : job.optimizer;
  if (!is_torch(job)) config.lr = rate_of(job);
  config.momentum = job.rule == "plain" ? 0 : 0.9;
  config.nesterov = job.rule == "other";
  config.weight_decay = job.weight_decay;
  config.no_decay = job.no_decay;
  config.eps = kEps;
  config.clip_norm = job.clip_norm;
  config.schedule = job.schedule == "floor" ? "cosine" : job.schedule;
  if (job.schedule == "floor") config.lr_min = config.lr / 5;
  config.lr_step_epochs = 1;
  config.lr_step_factor = 0.5;
  config.warmup_steps = job.warmup_steps;
  config.on_not_finite = job.on_not_finite.substr(0, 4);
  config.max_skipped_steps = job.on_not_finite == "skip:1" ? 1 : 0;  // a job of the reference skips for ever
  config.bucket_cap_mb = job.bucket_mb;
  config.first_bucket_mb = std::min(1.0, job.bucket_mb);
  config.comm_hook = job.comm_hook;
  config.broadcast_buffers = job.broadcast_buffers;
  config.sync_batchnorm = job.sync_batchnorm;
  config.static_graph = job.static_graph;
  config.early_update = job.early_update;
  config.activation_checkpointing = job.checkpointing;
  config.cuda_graphs = job.graphs;
  config.vote = job.vote;
  config.use_amp = job.amp != "none";
  if (config.use_amp) config.amp_dtype = job.amp;
  config.loss_scaler = job.loss_scaler;
  config.loss_scale_interval = job.loss_scale_interval;
  config.sync_every = job.sync_every;
  config.outer_momentum = job.outer_momentum;
  config.diloco_fragments = job.fragments;
  config.diloco_overlap = job.overlap;
  config.diloco_mixing = kMixing;
  config.powersgd_rank = job.powersgd_rank;
  config.powersgd_start_step = 0;
  config.switch_at = job.switch_at;
  config.verify_every = job.verify_every;
  config.snapshot_every = job.snapshot_every;
  config.validate_every = job.validate > 0 ? 1 : 0;
  config.save_every = kSaveEvery;
  config.keep_last = 100;
  config.log_interval = 1;
  config.checkpoint_dir = folder + "/checkpoints";
  config.run_dir = folder + "/run";
  config.collective_timeout = 20;
  return config;
}

// What the program logged as its loss is what the record has as the loss. With `masked`, a batch in which nothing
// counts logs nothing, and its loss may yet be no number.
std::string desk_fault(const nlohmann::json& entry, double loss, const std::string& prefix, bool masked) {
  const auto own = entry.find("own");
  const auto name = prefix + "own loss";
  const auto at = "the record of step " + std::to_string(entry["step"].get<std::int64_t>());
  if (own == entry.end() || !own->contains(name)) return at + " has no metric of the program's own";
  const double logged = (*own)[name].is_number() ? (*own)[name].get<double>() : std::nan("");
  if (std::isnan(loss) && (masked || std::isnan(logged))) return {};
  if (std::abs(logged - loss) <= 1e-9 * std::max(1.0, std::abs(loss))) return {};
  return at + " has the program's own " + prefix + "loss as " + std::to_string(logged) + ", and the loss as " +
         std::to_string(loss);
}

void read_metrics(const std::string& path, Outcome& outcome, const Job& job) {
  std::istringstream lines(testing::read_text(path));
  for (std::string line; std::getline(lines, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (entry.is_discarded()) continue;
    const auto number = [&](const char* name) {
      return entry.contains(name) && entry[name].is_number() ? entry[name].get<double>() : std::nan("");
    };
    if (entry["kind"] == "validation") {
      const auto after = entry["step"].get<std::int64_t>();
      if (outcome.held_out.contains(after)) outcome.twice = "the validation after step " + std::to_string(after);
      const auto loss = outcome.held_out[after] = number("validation_metrics/loss");
      if (job.desk && outcome.error.empty())
        outcome.error = desk_fault(entry, loss, "validation_metrics/", job.loss == "masked");
    }
    if (entry["kind"] != "train") continue;
    const auto step = entry["step"].get<std::int64_t>() - 1;
    auto& seen = outcome.steps[step];
    if (seen.samples == -1) outcome.twice = "step " + std::to_string(step);
    seen.loss = number("loss_metrics/global_avg_loss");
    seen.norm = number("grad_norm");
    seen.rate = number("lr");
    seen.committed = number("skipped_steps") == 0;
    if (job.desk && seen.committed && outcome.error.empty())
      outcome.error = desk_fault(entry, seen.loss, "", job.loss == "masked");
    seen.samples = seen.correct = seen.scale = -1;
  }
}

void read_checkpoints(const std::string& folder, Outcome& outcome) {
  for (const auto& entry : list_checkpoints(folder)) {
    auto& state = outcome.states[entry.step];
    const auto saved = load_checkpoint(folder, entry.path);
    const bool owes_validation = saved.state.metadata.at("tasks_done") == "3";  // docs/formats.md
    for (const auto& [name, tensor] : saved.state.tensors) {
      if (name != "state.counted") {
        state[name] = tensor;
        continue;
      }
      const auto done = static_cast<double>(entry.step);
      double validations = 0, after = 0;
      for (const auto& validation : outcome.held_out) {
        const auto step = validation.first;
        if (step > entry.step || (step == entry.step && owes_validation)) break;
        validations += 1;
        after += static_cast<double>(step);
      }
      if (!at::equal(tensor, torch::tensor({done, done * (done - 1) / 2, validations, after}, at::kDouble)))
        outcome.error = formatted(
            "after step %g the program's state has counted %g steps whose numbers add up to %g, "
            "and %g validations after %g; right are %g, %g, %g, %g",
            done, tensor[0].item<double>(), tensor[1].item<double>(), tensor[2].item<double>(),
            tensor[3].item<double>(), done, done * (done - 1) / 2, validations, after);
    }
  }
}

/// What a custom loop's reports say of its steps, where it is not what its records say; else empty.
std::string unlike(const Outcome& reported, const Outcome& recorded) {
  const auto same = [](double a, double b) {  // but for a product and its quotient
    return std::abs(a - b) <= 1e-14 * std::abs(a) || (!std::isfinite(a) && !std::isfinite(b));
  };
  for (const auto& [number, step] : reported.steps) {
    const auto of = "step " + std::to_string(number);
    const auto found = recorded.steps.find(number);
    if (found == recorded.steps.end()) return of + " is not in the records";
    const auto& other = found->second;
    if (step.committed != other.committed || !same(step.rate, other.rate) ||
        (step.committed && (!same(step.loss, other.loss) || !same(step.norm, other.norm))))
      return of + " is not in the records as it was reported";
  }
  return recorded.steps.size() == reported.steps.size() ? "" : "the records have steps that were not reported";
}

ChaosKind kind_of(const Job& job) {
  if (job.event == "hang") return ChaosKind::stop;
  for (const auto kind : {ChaosKind::net, ChaosKind::disk, ChaosKind::stop, ChaosKind::slow, ChaosKind::leave}) {
    if (job.event == name_of(kind)) return kind;
  }
  return ChaosKind::kill;
}

std::vector<PlacedFault> faults_of(const Job& job, int slot, int life) {
  const auto kind = kind_of(job);
  const auto step = hurt_step_of(job);
  const auto lasts = kind != ChaosKind::stop && kind != ChaosKind::slow ? 0ms : job.event == "hang" ? 4'000ms : 50ms;
  const int first = hurt_rank_of(job), other = (first + 1) % job.ranks;
  if (life == 0 && (slot == first || job.event == "all")) return {{job.kill_at, step, kind, lasts}};
  if (life == 0 && slot == other && job.again == "other") return {{job.kill_at, step + 1, kind, lasts}};
  if (life == 1 && slot == first && job.again == "newcomer") return {{"heal", step, ChaosKind::kill, 0ms}};
  return {};
}

SimulationOptions simulation_of(const Job& job, const Config& config) {
  auto simulation = testing::simulation_of(config);
  if (job.device == "fake") {
    test::FakeDevice::reset();
    simulation.rank.device = test::FakeDevice::device();
    simulation.rank.nccl = std::make_shared<test::ThreadNccl>();
  }
  if (!hurts(job)) return simulation;
  const bool replaces = !shrinks(job);
  simulation.log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  simulation.recovery.enabled = true;
  simulation.recovery.fence_after = 2s;
  simulation.recovery.replace_timeout = replaces ? 60s : 0s;
  if (!replaces) simulation.recovery.max_restarts = 0;
  simulation.faults = [&job](int slot, int life) { return faults_of(job, slot, life); };
  return simulation;
}

/// Runs it on ranks that are threads, again from its last checkpoint if all of them are lost. Returns what it ended
/// with, empty if all is well.
std::string run_threads(const Run& run, Notes& notes) {
  auto config = run.config;
  auto simulation = simulation_of(run.job, config);
  std::string errors;
  const auto take = [&](const nlohmann::json& note) { notes.add(note); };
  const int code = run_until_kept(simulation.recovery, [&](int starts_over) {
    if (starts_over > 0) {
      simulation.faults = {};
      if (!list_checkpoints(config.checkpoint_dir).empty()) config.resume = "latest";
    }
    simulation.rank.begins = starts_over == 0;
    errors.clear();
    std::optional<JobOver> over;
    const int status = testing::run_simulation(
        config, simulation, [&](Rank& rank) { live(run.job, run.stop_after, rank, take); },
        [&](int slot, const ErrorReport& report) {
          errors += "slot " + std::to_string(slot) + ": " + report.to_string() + "; ";
        },
        &over);
    return LaunchOutcome{status, lost_state(over, 0)};
  });
  if (code != 0 && errors.empty() && run.stop_after == 0) return "exit code " + std::to_string(code);
  return errors;
}

}  // namespace

Outcome subject(const Job& job, const std::string& folder, Order& order, Ranks ranks) {
  add_extensions();
  Outcome outcome;
  Notes notes(outcome);
  const auto run = ranks == Ranks::processes ? run_processes : run_threads;
  auto config = config_of(job, folder);
  outcome.error = run({job, config, job.event == "resume" ? kResumeStep : 0}, notes);
  if (job.event == "resume" && outcome.error.empty()) {
    auto second = job;
    if (job.resume_ranks > 0) second.ranks = job.resume_ranks;
    if (job.resume_batch > 0) second.batch_size = job.resume_batch;
    if (!job.resume_strategy.empty()) second.strategy = job.resume_strategy;
    const auto epochs = config.epochs;
    config = config_of(second, folder);
    config.epochs = epochs;
    config.resume = "latest";
    outcome.error = run({second, config, 0}, notes);
  }
  if (job.shuffle) order = notes.order();
  if (!outcome.error.empty()) return outcome;
  Outcome recorded;
  read_metrics(config.run_dir + "/metrics.jsonl", recorded, job);
  outcome.error = recorded.error;
  outcome.held_out = recorded.held_out;
  outcome.twice = recorded.twice;
  if (!outcome.error.empty()) return outcome;
  if (job.vote == "late") {
    outcome.steps.clear();  // reports are of the step before
  } else if (job.loop == "framework") {
    outcome.steps = std::move(recorded.steps);
  } else if (outcome.error = unlike(outcome, recorded); !outcome.error.empty()) {
    return outcome;
  }
  read_checkpoints(config.checkpoint_dir, outcome);
  notes.finish();
  return outcome;
}

}  // namespace troupe::differential
