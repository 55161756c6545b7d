#include "actors/simulator/history.hpp"

#include <algorithm>

namespace troupe::simulator {
namespace {

std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
  a = (a ^ b) * 0x9e3779b97f4a7c15ULL;
  return a ^ (a >> 29);
}

std::string name(const ProcessId& process) {
  return "slot " + std::to_string(process.slot) + " (life " + std::to_string(process.incarnation) + ")";
}

}  // namespace

Slice slice_of(int rank, int world_size) noexcept {
  return {kGlobalBatch * rank / world_size, kGlobalBatch * (rank + 1) / world_size};
}

std::uint64_t hash_of_samples(std::int64_t step, const std::vector<Slice>& slices) noexcept {
  std::vector<std::int64_t> samples;
  for (const auto& slice : slices) {
    for (auto sample = slice.first; sample < slice.end; ++sample) samples.push_back(step * kGlobalBatch + sample);
  }
  std::sort(samples.begin(), samples.end());
  std::uint64_t hash = 7;
  for (const auto sample : samples) hash = mix(hash, static_cast<std::uint64_t>(sample));
  return hash;
}

void apply_step(ModelState& state, std::int64_t step, std::uint64_t samples_hash) noexcept {
  state.moments = mix(mix(state.moments, samples_hash), static_cast<std::uint64_t>(step));
  state.weights = mix(state.weights, state.moments);
}

const ModelState& History::expected(std::int64_t steps_done) {
  while (static_cast<std::int64_t>(expected_.size()) <= steps_done) {
    auto next = expected_.back();
    const auto step = static_cast<std::int64_t>(expected_.size()) - 1;
    apply_step(next, step, hash_of_samples(step, {{0, kGlobalBatch}}));
    expected_.push_back(next);
  }
  return expected_[static_cast<std::size_t>(steps_done)];
}

void History::broken(const std::string& invariant, const std::string& what) {
  if (!violation_) violation_ = invariant + ": " + what;
}

void History::journaled(const Membership& membership) {
  // A coordinator that takes over writes down again what a rank has told it.
  const auto again = [&](const Membership& written) {
    return written.generation == membership.generation &&
           std::ranges::equal(written.members, membership.members, {}, &Member::process, &Member::process);
  };
  if (std::ranges::any_of(journal_, again)) return;
  if (!journal_.empty() && membership.generation <= journal_.back().generation)
    broken("I4", "generation " + std::to_string(membership.generation) + " was written after generation " +
                     std::to_string(journal_.back().generation));
  journal_.push_back(membership);
}

void History::entered(const ProcessId& process, std::uint64_t generation) {
  auto& known = generation_[{process.slot, process.incarnation}];
  if (generation <= known)
    broken("I4",
           name(process) + " entered generation " + std::to_string(generation) + " after " + std::to_string(known));
  known = generation;
  const auto* written = [&]() -> const Membership* {
    for (const auto& membership : journal_) {
      if (membership.generation == generation) return &membership;
    }
    return nullptr;
  }();
  if (written == nullptr)
    return broken("I4", "generation " + std::to_string(generation) + " was entered and is not in the journal");
  const int rank = written->rank_of(process);
  if (rank < 0)
    return broken("I4",
                  name(process) + " entered generation " + std::to_string(generation) + " and is no member of it");
  const auto done = steps_done_.find({process.slot, process.incarnation});
  const auto steps = done == steps_done_.end() ? 0 : done->second;
  if (!written->members[static_cast<std::size_t>(rank)].newcomer && steps != written->resume_step)
    broken("I1", name(process) + " has done " + std::to_string(steps) + " steps and goes on in generation " +
                     std::to_string(generation) + " at step " + std::to_string(written->resume_step));
}

void History::applied(const ProcessId& process, std::uint64_t generation, std::int64_t step,
                      const std::vector<Slice>& slices, const ModelState& state) {
  auto& done = steps_done_[{process.slot, process.incarnation}];
  if (done != step)
    broken("I1", name(process) + " applied step " + std::to_string(step) + " after " + std::to_string(done) + " steps");
  done = step + 1;
  furthest_ = std::max(furthest_, done);
  std::vector<int> used(kGlobalBatch, 0);
  for (const auto& slice : slices) {
    for (auto sample = slice.first; sample < slice.end; ++sample) ++used[static_cast<std::size_t>(sample)];
  }
  for (std::size_t sample = 0; sample < used.size(); ++sample) {
    if (used[sample] != 1)
      broken("I2", "step " + std::to_string(step) + " on " + name(process) + " used sample " + std::to_string(sample) +
                       " " + std::to_string(used[sample]) + " times");
  }
  // One that has not heard yet may end the step that it is in; no other.
  for (const auto& later : journal_) {
    if (later.generation > generation && step > later.resume_step)
      broken("I4", name(process) + " applied step " + std::to_string(step) + " in generation " +
                       std::to_string(generation) + " although generation " + std::to_string(later.generation) +
                       " went on at step " + std::to_string(later.resume_step));
  }
  check_state(process, done, state);
}

void History::took_state(const ProcessId& process, std::int64_t steps_done, const ModelState& state) {
  steps_done_[{process.slot, process.incarnation}] = steps_done;
  check_state(process, steps_done, state);
}

void History::check_state(const ProcessId& process, std::int64_t steps_done, const ModelState& state) {
  if (!(state == expected(steps_done)))
    broken("I3", name(process) + " has another state after step " + std::to_string(steps_done - 1));
}

void History::published(const SavedCheckpoint& checkpoint, bool alone) {
  const auto what = "the checkpoint of step " + std::to_string(checkpoint.step);
  if (checkpoint.step < latest_step_)
    broken("I5", what + " became the latest after that of step " + std::to_string(latest_step_));
  // A rank that parks saves what it has, perhaps later than what the others, once they are back, have still to publish:
  // that is older, and whole.
  latest_step_ = alone ? std::min(latest_step_, checkpoint.step) : checkpoint.step;
  for (int rank = 0; rank < checkpoint.ranks; ++rank) {
    const auto part = checkpoint.parts.find(rank);
    if (part == checkpoint.parts.end()) return broken("I5", what + " lacks the part of rank " + std::to_string(rank));
    if (part->second.step != checkpoint.step || !(part->second.state == expected(checkpoint.step)))
      return broken("I5", what + " has another state in the part of rank " + std::to_string(rank));
  }
}

void History::began_anew() { journal_.clear(); }

}  // namespace troupe::simulator
