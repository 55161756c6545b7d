#pragma once
#include <torch/torch.h>
#include <caf/all.hpp>

#include <memory>
#include <utility>

#include "launch/config/config.hpp"
#include "launch/loop/callbacks.hpp"
#include "launch/loop/data_position.hpp"
#include "launch/loop/loop_micro_batches.hpp"
#include "launch/loop/loop_records.hpp"
#include "launch/loop/loop_tasks.hpp"
#include "launch/loop/loop_times.hpp"
#include "launch/loop/loop_trace.hpp"
#include "launch/loop/loop_watch.hpp"
#include "launch/loop/own_state.hpp"
#include "launch/loop/program_optimizers.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/loop/run_schedule.hpp"

namespace troupe {

/// The parts of a Rank, for itself and for the loops that it hands out. Each part keeps its state to itself. Compute's
/// thread.
struct RankParts {
  /// `of_rank` must outlive it.
  RankParts(Rank& rank, caf::actor_system& actors, const Config& of_rank, RankSystemOptions options)
      : trace(of_rank, options),
        system(actors, trace.with_recorder(std::move(options))),
        schedule(of_rank),
        micro_batches(of_rank, system, model, schedule, times),
        records(rank, position),
        own_state(rank),
        tasks(rank, *this) {}

  std::shared_ptr<LoopWatch> watch;  ///< empty: the loop is not watched
  LoopTrace trace;
  RankSystem system;
  ProgramOptimizers optimizers;
  std::shared_ptr<torch::nn::Module> model;  ///< empty before distribute
  bool grouped = false;                      ///< an optimizer's parameters are in groups by the config
  DataPosition position;
  RunSchedule schedule;
  LoopTimes times;
  LoopMicroBatches micro_batches;
  LoopRecords records;
  OwnState own_state;
  Callbacks callbacks;
  LoopTasks tasks;
};

/// For the loops that a rank hands out, and the tasks between their steps.
RankParts& parts_of(Rank& rank) noexcept;

}  // namespace troupe
