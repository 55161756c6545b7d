#pragma once
#include <caf/all.hpp>

#include <chrono>
#include <optional>
#include <utility>

#include "actors/messages/messages.hpp"
#include "actors/rank/reducer.hpp"
#include "actors/rank/thread_actor.hpp"
#include "actors/step/step_protocol.hpp"

namespace troupe {

/// The mailbox in which the rank's other actors answer its compute thread. A wait throws the report of a failing actor,
/// of an interruption or of an abort, and Error(internal) once `timeout` is over. For the thread that made it.
class ComputeMailbox {
 public:
  /// `protocol`: for the rank and the step in errors; outlives this.
  ComputeMailbox(caf::actor_system& system, const StepProtocol& protocol, std::chrono::milliseconds timeout)
      : self_(system), protocol_(protocol), timeout_(timeout) {}

  /// The address that others send to.
  caf::actor address() const { return self_.handle(); }
  caf::blocking_actor& actor() { return *self_; }

  /// One message of type T; errors name `what` and `actor`. `away`: the actor may be gone for this long, which is added
  /// to the timeout.
  template <class T>
  T receive(const char* actor, const char* what, std::chrono::milliseconds away = {}) {
    std::optional<T> result;
    while (!result) {
      self_->receive(
          [&](T& message) { result = std::move(message); }, [&](RankFailed& failed) { throw Error(failed.report); },
          [&](CommunicatorFailed& failed) { throw Error(failed.report); },
          [&](InterruptRanks& message) { throw_interrupted(message); }, [&](AbortJob& job) { throw_abort(job.report); },
          caf::after(timeout_ + away) >> [&] { throw_timeout(actor, what); });
    }
    return std::move(*result);
  }
  /// As receive, for a stream that ends with a message of type End: then nullopt.
  template <class T, class End>
  std::optional<T> receive_next(const char* actor, const char* what) {
    std::optional<T> result;
    self_->receive([&](T& message) { result = std::move(message); }, [](End&) {},
                   [&](RankFailed& failed) { throw Error(failed.report); },
                   [&](InterruptRanks& message) { throw_interrupted(message); },
                   [&](AbortJob& job) { throw_abort(job.report); },
                   caf::after(timeout_) >> [&] { throw_timeout(actor, what); });
    return result;
  }
  /// Throws if this rank has been interrupted meanwhile, as a wait would; does not wait.
  void throw_if_interrupted();

  /// A membership of a later generation than the protocol's. Throws Error(peer_lost) after `timeout`.
  Membership await_membership(std::chrono::milliseconds timeout);
  /// The job is over, or this rank is. Throws what an actor of this rank or the coordinator reports of it, if a report
  /// comes within a second.
  void await_abort();
  /// Drops the reducer's messages about the old communicator, sent before it left that.
  void drop_of_last_generation();

 private:
  [[noreturn]] void throw_abort(const ErrorReport& report) const;
  [[noreturn]] void throw_interrupted(const InterruptRanks& message) const;
  [[noreturn]] void throw_timeout(const char* actor, const char* what) const;

  ThreadActor self_;
  const StepProtocol& protocol_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace troupe
