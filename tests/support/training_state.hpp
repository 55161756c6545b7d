#pragma once
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <string>

#include "tensor_io/checkpoint/checkpoint_writer.hpp"
#include "tensor_io/checkpoint/rank_state.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tensor_io/layout/named_state.hpp"

namespace troupe::testing {

/// A small state with every part that a checkpoint has; another one for every step.
inline TrainingState small_state(std::int64_t step, int ranks = 2) {
  const auto value = static_cast<double>(step);
  TrainingState state;
  state.step = step;
  state.epoch = step / 7 + 1;
  state.step_in_epoch = step % 7 + 1;
  state.tensors = {{"model.weight", torch::arange(12, torch::kFloat).view({3, 4}) + value},
                   {"model.steps", torch::tensor(step)},
                   {"model.half", torch::full({5}, value, torch::kBFloat16)},
                   {"optimizer.weight.momentum_buffer", torch::full({3, 4}, value / 3, torch::kFloat)}};
  state.metadata = {{"config", "{\"lr\":0.01}"},
                    {"job", "0123456789abcdef"},
                    {"strategy", "ddp"},
                    {"bucket_plan", "[[0,1]]"},
                    {"scaler", "65536"}};
  for (int rank = 0; rank < ranks; ++rank) {
    RankState rank_state;
    rank_state.rng = {1, 2, static_cast<std::uint8_t>(rank), 255};
    rank_state.epoch = state.epoch;
    rank_state.step_in_epoch = state.step_in_epoch;
    rank_state.counters = {{"best_accuracy", 0.97 + rank}};
    state.rank_state.push_back(rank_state.to_json());
  }
  return state;
}

/// Both phases of a save, by a process that has the whole state.
class WholeStateWriter : public CheckpointWriter {
 public:
  WholeStateWriter(const std::string& directory, std::int64_t keep_last, FileLayer& files = real_files())
      : CheckpointWriter(directory, keep_last, files), directory_(directory), files_(files) {}

  SavedCheckpoint save(const TrainingState& state, bool best) {
    const SaveAttempt attempt{state.step, "alone-" + std::to_string(++saves_)};
    const auto ranks = static_cast<std::int64_t>(state.rank_state.size());
    try {
      clear_leftovers();  // of a save that failed
      for (std::int64_t rank = 0; rank < std::max<std::int64_t>(ranks, 1); ++rank) {
        CheckpointPart part{state.step, state.epoch, state.step_in_epoch, rank, ranks, state.metadata, {}, {}};
        if (rank == 0) {
          for (const auto& [name, tensor] : state.tensors) part.tensors.push_back(whole_part(name, tensor));
          sort_for_file(part.tensors);
        }
        if (rank < ranks) part.rank_state = state.rank_state[static_cast<std::size_t>(rank)];
        write_checkpoint_part(directory_, attempt, part, files_);
      }
      return publish(attempt, std::max<std::int64_t>(ranks, 1), best);
    } catch (...) {
      give_up(attempt);
      throw;
    }
  }

 private:
  const std::string directory_;
  FileLayer& files_;
  int saves_ = 0;
};

/// What rank `rank` of the state's ranks writes.
inline CheckpointPart part_of(const TrainingState& state, std::int64_t rank) {
  const auto ranks = static_cast<std::int64_t>(state.rank_state.size());
  CheckpointPart part{state.step,
                      state.epoch,
                      state.step_in_epoch,
                      rank,
                      ranks,
                      state.metadata,
                      parts_for(state.tensors, rank, ranks),
                      state.rank_state[static_cast<std::size_t>(rank)]};
  sort_for_file(part.tensors);
  return part;
}

/// Bit by bit, whatever the order of the tensors.
inline bool equal(const TrainingState& a, const TrainingState& b) {
  if (a.step != b.step || a.epoch != b.epoch || a.step_in_epoch != b.step_in_epoch || a.metadata != b.metadata ||
      a.rank_state != b.rank_state)
    return false;
  if (a.tensors.size() != b.tensors.size()) return false;
  const std::map<std::string, at::Tensor> others(b.tensors.begin(), b.tensors.end());
  for (const auto& [name, tensor] : a.tensors) {
    const auto other = others.find(name);
    if (other == others.end() || tensor.scalar_type() != other->second.scalar_type() ||
        !torch::equal(tensor, other->second))
      return false;
  }
  return true;
}

}  // namespace troupe::testing
