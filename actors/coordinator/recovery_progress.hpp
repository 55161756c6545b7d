#pragma once
#include <cstdint>

#include "actors/messages/membership.hpp"

namespace troupe {

/// Ends a job that is interrupted in the same step again and again. A value.
class RecoveryProgress {
 public:
  /// `next` is about to follow `current`. Returns why the job is to end instead. A membership that only grows is no
  /// interruption.
  std::optional<ErrorReport> judge(const Membership& next, const Membership& current) {
    constexpr int kMost = 3;
    if (next.resume_step > last_resume_) fruitless_ = 0;
    last_resume_ = next.resume_step;
    if (next.only_adds_to(current) || ++fruitless_ <= kMost + 1) return std::nullopt;
    const auto times = std::to_string(fruitless_ - 1) + " times";
    return ErrorReport{.code = ErrorCode::aborted,
                       .step = next.resume_step,
                       .operation = "recovery",
                       .cause = "step " + std::to_string(next.resume_step) + " was interrupted " + times,
                       .remedy = "see the ranks' logs"};
  }

 private:
  std::int64_t last_resume_ = -1;
  int fruitless_ = 0;  // recoveries without a step in between
};

}  // namespace troupe
