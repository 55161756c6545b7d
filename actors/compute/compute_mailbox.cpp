#include "actors/compute/compute_mailbox.hpp"

#include <string>

namespace troupe {

void ComputeMailbox::throw_if_interrupted() {
  self_->receive([](RankFailed& failed) { throw Error(failed.report); },
                 [&](InterruptRanks& message) { throw_interrupted(message); },
                 [&](AbortJob& job) { throw_abort(job.report); }, caf::after(std::chrono::seconds(0)) >> [] {});
}

Membership ComputeMailbox::await_membership(std::chrono::milliseconds timeout) {
  std::optional<Membership> next;
  while (!next) {
    self_->receive(
        [&](Membership& membership) {
          if (membership.generation > protocol_.group().generation) next = std::move(membership);
        },
        [](InterruptRanks&) {}, [](CommunicatorFailed&) {}, [](BucketsReduced&) {},
        [](RankFailed& failed) { throw Error(failed.report); }, [&](AbortJob& job) { throw_abort(job.report); },
        caf::after(timeout) >>
            [&] {
              protocol_.fail(ErrorCode::peer_lost, "membership",
                             "the coordinator announced no new membership within " +
                                 std::to_string(timeout.count() / 1000) + " s");
            });
  }
  return std::move(*next);
}

void ComputeMailbox::await_abort() {
  self_->receive([](RankFailed& failed) { throw Error(failed.report); },  // this rank's own, which came first
                 [&](AbortJob& job) { throw_abort(job.report); }, caf::after(std::chrono::seconds(1)) >> [] {});
}

void ComputeMailbox::drop_of_last_generation() {
  bool more = true;
  while (more) {
    self_->receive([](const CommunicatorFailed&) {}, [](const BucketsReduced&) {}, [](const InterruptRanks&) {},
                   caf::after(std::chrono::seconds(0)) >> [&] { more = false; });
  }
}

void ComputeMailbox::throw_abort(const ErrorReport& report) const {
  using enum ErrorCode;
  if (report.code == ok || report.code == parked || report.code == state_lost || report.code == fenced)
    throw Error(report);
  protocol_.fail(aborted, {}, "the job was aborted: " + report.to_string());
}

void ComputeMailbox::throw_interrupted(const InterruptRanks& message) const {
  protocol_.fail(ErrorCode::aborted, {}, message.reason.cause);
}

void ComputeMailbox::throw_timeout(const char* actor, const char* what) const {
  protocol_.fail(ErrorCode::internal, what,
                 std::string("the ") + actor + " did not answer within " + std::to_string(timeout_.count()) + " ms",
                 "raise collective_timeout if it is only slow");
}

}  // namespace troupe
