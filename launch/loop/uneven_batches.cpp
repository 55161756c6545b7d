#include "launch/loop/uneven_batches.hpp"

#include <algorithm>

#include "actors/strategy/snapshots.hpp"
#include "launch/loop/rank_parts.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {
namespace {

constexpr const char* kNote = "uneven_round";  // of Compute::notes: steps done, loop, round

}  // namespace

UnevenLoop::~UnevenLoop() {
  if (parts_->position.end_uneven(this)) parts_->micro_batches.end_loop();
}

void UnevenLoop::check_settings() const {
  const auto& config = rank_->config();
  const auto refuse = [](const std::string& why, const char* remedy) {
    throw Error(ErrorCode::usage, "uneven", why, remedy);
  };
  if (!parts_->model) refuse("no model was distributed", "call rank.distribute(model) before the loop");
  if (config.grad_accum_steps > 1) {
    refuse("grad_accum_steps is " + std::to_string(config.grad_accum_steps),
           "set it to 1: the weight of a micro-batch is known only when the step ends");
  }
  if (config.balance != "equal") {
    refuse("balance is '" + config.balance + "', and with rank.uneven the program decides how much each rank has",
           "set balance to equal");
  }
  auto& compute = system_of(*rank_).compute();
  if (compute.strategy().capability<Placement>() != nullptr) {
    refuse("with strategy " + config.strategy + " several ranks work on the same samples",
           "take batches from rank.loader");
  }
  if (compute.shares_per_rank() > 1) {
    refuse(config.strategy + " already gives ranks different numbers of batches in a step",
           "take them from rank.loader, or set staleness to 0 and server_shares to 1");
  }
}

// A newcomer goes by the others' note, and a resumed run by its checkpoint.
void UnevenLoop::enter() {
  parts_->tasks.check_before_loop();
  auto& position = parts_->position;
  loop_ = position.begin_uneven(this);
  auto& compute = system_of(*rank_).compute();
  const auto& notes = compute.notes();
  const auto note = wholes_in(notes, kNote);
  if (loop_ == 0 && compute.membership().generation > 1 && note)
    position.set_uneven_start({note->at(1), note->at(2) + compute.steps_done() - note->at(0)});
  const auto& start = position.uneven_start();
  over_ = loop_ < start.epoch && !rank_->config().validate_only;
  if (loop_ == start.epoch) round_ = start.step;
  if (parts_->records.has_optimizer()) parts_->records.begin();
}

void UnevenLoop::note() const {
  system_of(*rank_).compute().notes()[kNote] =
      std::to_string(rank_->steps_done()) + " " + std::to_string(loop_) + " " + std::to_string(round_);
}

// The round before is over: the next one, or that one again if its step was interrupted.
void UnevenLoop::find_round() {
  const bool interrupted = parts_->position.take_interrupted();
  planned_at_ = rank_->steps_done();
  if (begun_.empty()) return;
  round_ = begun_.back().first + 1;
  if (interrupted && planned_at_ <= begun_.back().second) go_back();
}

// The loss of a rank between two rounds may have taken all back to an earlier step.
void UnevenLoop::follow() {
  (void)parts_->position.take_interrupted();
  const auto steps = rank_->steps_done();
  if (steps >= planned_at_) return;
  round_ -= std::exchange(planned_at_, steps) - steps;
  if (!begun_.empty()) go_back();
}

void UnevenLoop::go_back() {
  const auto again =
      std::find_if(begun_.rbegin(), begun_.rend(), [&](const auto& round) { return round.second <= planned_at_; });
  if (again == begun_.rend()) throw_gone();
  round_ = again->first;
  begun_.erase(again.base() - 1, begun_.end());
}

void UnevenLoop::throw_gone() const {
  throw Error(ErrorCode::state_lost, "uneven",
              "all ranks went back to step " + std::to_string(rank_->steps_done()) + ", whose batches are gone",
              "start again with --resume auto");
}

// Snapshots are taken every so many steps, and the one before the last may be what all go back to.
std::int64_t UnevenLoop::keep_from() const {
  auto& compute = system_of(*rank_).compute();
  const bool goes_back = compute.options().may_recover && compute.strategy().capability<Snapshots>() != nullptr;
  return round_ - (goes_back ? 2 * std::max<std::int64_t>(1, compute.options().training.snapshot_every) : 0);
}

// A rank that was interrupted while a loop ended may find others in the next one: then its own is over, too.
std::optional<double> UnevenLoop::agree(std::int64_t samples, Answer& answer) {
  const auto mine = at::tensor({loop_, samples}, at::kLong);
  auto all = at::empty({rank_->world_size() * 2}, at::kLong);
  rank_->communicator().all_gather(all, mine, "samples");
  const auto table = all.view({-1, 2});
  const auto latest = table.select(1, 0).max().item<std::int64_t>();
  const auto total = table.select(1, 1).sum().item<std::int64_t>();
  answer = Answer::run;
  if (loop_ < latest || total == 0)
    answer = Answer::over;
  else if (table.select(1, 0).min().item<std::int64_t>() < latest)
    answer = Answer::again;
  if (answer != Answer::run) return std::nullopt;
  return static_cast<double>(samples) * rank_->world_size() / static_cast<double>(total);
}

UnevenLoop::Answer UnevenLoop::begin_round() {
  const auto samples = round_ < 0 ? -1 : take(round_, keep_from());
  if (samples < 0) throw_gone();
  auto answer = Answer::run;
  const auto weight = agree(samples, answer);
  if (!weight) return answer;
  if (!has_batch()) {
    throw Error(ErrorCode::usage, "uneven", "this rank has no batch, and others have some",
                "give each rank at least one");
  }
  begun_.emplace_back(round_, rank_->steps_done());
  while (begun_.front().first < keep_from()) begun_.pop_front();
  note();
  parts_->trace.update(rank_->steps_done());
  parts_->micro_batches.begin(samples, *weight);
  if (parts_->watch) parts_->watch->batch(fields());
  return Answer::run;
}

bool UnevenLoop::next() {
  check_settings();
  if (loop_ < 0) enter();
  find_round();
  while (!over_) {
    try {
      parts_->tasks.run();
      follow();
      const auto& config = rank_->config();
      over_ = config.validate_only || rank_->stop_requested() || parts_->tasks.are_enough() ||
              (config.max_steps > 0 && rank_->steps_done() >= config.max_steps);
      if (!over_) {
        const auto answer = begin_round();
        if (answer == Answer::run) return true;
        over_ = answer == Answer::over;
      }
      if (over_ && !parts_->tasks.end_of_steps()) {
        over_ = false;
        follow();
      }
    } catch (const Error& error) {
      rank_->recover(error);
      over_ = false;
      follow();
    }
  }
  if (parts_->watch) parts_->watch->loop_ends();
  return false;
}

}  // namespace troupe
