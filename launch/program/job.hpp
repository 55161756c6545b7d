#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/step/loss.hpp"
#include "launch/loop/rank.hpp"

namespace troupe {

/// The data of a job.
struct Datasets {
  std::shared_ptr<const Dataset> train;     ///< drawn from by the sampler
  std::shared_ptr<const Dataset> held_out;  ///< may be empty: no validation
};

/// A training job by its parts; the framework owns the loop: epochs, micro-batches, validation, checkpoints, resume,
/// logs, an orderly stop. Every function is called on each rank's thread with the same config.
struct Job {
  std::function<std::shared_ptr<torch::nn::Module>(const Config&)> model;  ///< makes it, on each rank alike; needed
  std::function<Datasets(const Config&)> data;                             ///< opens it, on each rank alike; needed
  /// Training and validation; `model` is in train or eval mode accordingly.
  std::function<Loss(torch::nn::Module& model, const Batch& batch, const Config&)> loss;
  /// Default: the optimizer that the config names, with weight decay by `groups` and the config's no_decay.
  std::function<std::unique_ptr<Optimizer>(const torch::nn::Module& model, const Config&)> optimizer;
  /// The program's functions for the places of the loop. Called once on each rank, after distribute: the place for
  /// rank.state. Objects captured by copy are each rank's own, also of simulated ranks.
  std::function<Callbacks(Rank& rank, torch::nn::Module& model)> callbacks;
  /// Parameters with a separate rate and weight decay, for the default optimizer; may be empty.
  std::function<ParameterRules(const Config&)> groups;
  /// As Rank::schedule; empty: the config's.
  std::function<double(std::int64_t step, std::int64_t total_steps, const Config&)> schedule;
  /// The program's own options: `config.declare(...)`.
  std::function<void(Config&)> declare;
};

/// Runs the job by this process's place in it; returns the exit code. `--help`, `--ranks 4`, `--resume latest` and so
/// on all work.
int run(const Job& job, int argc, char** argv);

/// Throws Error(usage) for a job that lacks a needed part.
void check_parts(const Job& job);

/// Sees a rank's training from its thread. Either may be empty.
struct TrainingWatch {
  std::function<void(const Rank& rank, const StepReport& report)> step;  ///< after each
  std::function<void(Rank& rank, Optimizer& optimizer)> end;             ///< after the last; collectives are allowed
};

/// The loop itself, on one rank.
void train(const Job& job, Rank& rank, const TrainingWatch& watch = {});

}  // namespace troupe
