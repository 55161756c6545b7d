#include "actors/step/step_protocol.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

void StepProtocol::fail(ErrorCode code, const std::string& operation, const std::string& cause,
                        const std::string& remedy) const {
  throw Error(ErrorReport{code, rank_, "compute", step_, operation, cause, remedy});
}

void StepProtocol::expect(bool due, const char* call) const {
  if (due) return;
  fail(ErrorCode::internal, "step protocol", std::string(call) + " is not due", "report this as a fault of Troupe");
}

RankInterrupted StepProtocol::interruption(const ErrorReport& why, std::vector<std::int32_t> unreachable) const {
  RankInterrupted report;
  report.process = process_;
  report.generation = group_.generation;
  report.steps_done = step_;
  report.voted_step = voted_step_;
  report.tasks_done = tasks_done_;
  report.distributed = distributed_;
  report.whole = whole_ && distributed_;
  report.votes_step = votes_step_;
  report.votes = votes_;
  report.why = why.to_string();
  report.hung = why.code == ErrorCode::timeout;
  report.unreachable = std::move(unreachable);
  report.goes_back = goes_back_;
  report.save = save_begun_;
  report.parted = parted_;
  report.leaves = leaves_;
  return report;
}

Rejoin StepProtocol::leave_for(const Membership& next, bool in_step) const {
  if (goes_back_) return Rejoin::roll_back;
  if (next.resume_step == step_ + 1 && voted_step_ == step_ && in_step) {
    if (next.votes.empty()) fail(ErrorCode::internal, "recovery", "there are no votes to commit by");
    return Rejoin::commit;
  }
  if (next.resume_step != step_ && whole_)
    fail(ErrorCode::internal, "recovery", "the others go on at step " + std::to_string(next.resume_step));
  return Rejoin::roll_back;
}

void StepProtocol::join(Membership next) {
  expect(next.generation > group_.generation, "joining an earlier generation");
  rank_ = next.rank_of(process_);
  if (rank_ < 0) fail(ErrorCode::fenced, {}, "the job goes on without this process");
  group_ = std::move(next);
  whole_ = !group_.members[static_cast<std::size_t>(rank_)].newcomer;
  heal_pending_ = optimizer_pending_ = group_.has_newcomers();
  voted_step_ = votes_step_ = -1;
  parted_ = leaves_ = false;
  votes_.clear();
  tasks_done_ = group_.tasks_done;
  step_ = group_.resume_step;
}

void StepProtocol::part(const std::vector<int>& leaving) {
  parted_ = true;
  leaves_ = std::find(leaving.begin(), leaving.end(), rank_) != leaving.end();
}

void StepProtocol::settled_optimizer() {
  whole_ = true;
  optimizer_pending_ = false;
}

void StepProtocol::became_distributed() {
  expect(!heal_pending_, "training before the heal");
  distributed_ = true;
}

void StepProtocol::went_back(std::int64_t step) noexcept {
  whole_ = true;
  optimizer_pending_ = false;  // the optimizer gets its part when it is next seen
  tasks_done_ = 0;
  step_ = step;
}

void StepProtocol::vote() {
  expect(distributed_ && !heal_pending_ && !optimizer_pending_, "a vote");
  voted_step_ = step_;
}

void StepProtocol::votes_came(std::string votes) {
  expect(voted_step_ == step_, "the votes' arrival");
  votes_ = std::move(votes);
  votes_step_ = step_;
}

void StepProtocol::end_step() {
  expect(voted_step_ == step_, "a step's end");
  tasks_done_ = 0;
  ++step_;
}

}  // namespace troupe
