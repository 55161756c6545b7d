#pragma once
#include <ATen/Parallel.h>
#include <caf/all.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "actors/rank/thread_actor.hpp"
#include "actors/strategy/strategy.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/base/trace.hpp"

namespace troupe {

/// Converts an exception to the ErrorReport that the rank sends.
ErrorReport report_of_own_actor(const std::exception_ptr& error);

/// For tests: the address that stands before a strategy's own actor of this name, and gets the strategy's messages to
/// it. Set on compute's thread of a rank; empty: there is none.
inline thread_local std::function<caf::strong_actor_ptr(const caf::strong_actor_ptr& actor, const std::string& name)>
    address_before_own_actor;

/// A strategy's own actor, with its own thread, for work while the rank computes: an exchange over a communicator, for
/// example.
///
/// An exception of a handler ends it, and `receive` throws the same on the compute thread, so that a lost peer begins a
/// new generation as elsewhere. Each message is answered once. Make a new one in each generation
/// (ReplicatedStrategy::joined): no answer of the old one can reach it. Its behavior may wait only for communicators,
/// which have deadlines: the destructor waits for the work that was sent. Compute's thread.
template <class Handle>
class OwnActor {
 public:
  /// `make_behavior(pointer to the actor)` returns its behavior; called on the actor's thread.
  template <class Behavior>
  OwnActor(const StrategyContext& context, std::string name, Behavior make_behavior)
      : name_(std::move(name)), timeout_(context.timeout), self_(*context.system) {
    // The failure is an argument, not captured: with none at all CAF 0.17.6 binds a reference to a null pointer.
    const auto run = [make_behavior, trace = trace_recorder(), name = name_](
                         typename Handle::pointer self, const std::shared_ptr<std::optional<ErrorReport>>& failure) {
      join_trace(trace, name);
      at::init_num_threads();
      self->set_exception_handler([failure](std::exception_ptr& error) -> caf::error {
        *failure = report_of_own_actor(error);
        return caf::exit_reason::unhandled_exception;
      });
      return make_behavior(self);
    };
    handle_ = context.system->template spawn<caf::detached>(run, failure_);
    self_->monitor(handle_);
    address_ = handle_;
    if (address_before_own_actor)
      address_ =
          caf::actor_cast<Handle>(address_before_own_actor(caf::actor_cast<caf::strong_actor_ptr>(handle_), name_));
  }
  ~OwnActor() {
    drain();
    caf::anon_send_exit(handle_, caf::exit_reason::user_shutdown);
    self_->wait_for(handle_);
  }
  OwnActor(const OwnActor&) = delete;
  OwnActor& operator=(const OwnActor&) = delete;

  /// Returns at once; `receive` gets the handler's result.
  template <class... Message>
  void send(Message&&... message) {
    self_->send(address_, std::forward<Message>(message)...);
    ++unanswered_;
  }
  /// The next answer. Throws the error that ended the actor; Error(timeout) after StrategyContext::timeout.
  template <class Answer>
  Answer receive(const char* what) {
    std::optional<Answer> answer;
    self_->receive([&](Answer& message) { answer = std::move(message); },
                   [&](const caf::down_msg&) {
                     unanswered_ = 0;
                     throw Error(failure_->value_or(
                         ErrorReport{ErrorCode::internal, -1, name_, -1, what, "the actor has ended", {}}));
                   },
                   caf::after(timeout_) >>
                       [&] {
                         gave_up_ = true;  // the destructor waits no second time
                         throw Error(ErrorReport{ErrorCode::timeout, -1, name_, -1, what,
                                                 "no answer within " + std::to_string(timeout_.count()) + " ms",
                                                 "raise collective_timeout if it is only slow"});
                       });
    --unanswered_;
    gave_up_ = false;
    return std::move(*answer);
  }

 private:
  // Another rank's actor may wait for the remaining work of this one, also after the last step.
  void drain() {
    while (unanswered_ > 0 && !gave_up_) {
      self_->receive([&](const caf::down_msg&) { unanswered_ = 0; },
                     caf::others >> [&](caf::message_view&) -> caf::result<caf::message> {
                       --unanswered_;
                       return caf::message();
                     },
                     caf::after(timeout_) >> [&] { unanswered_ = 0; });
    }
  }

  std::string name_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<std::optional<ErrorReport>> failure_ =
      std::make_shared<std::optional<ErrorReport>>();  // written before it ends
  ThreadActor self_;
  Handle handle_, address_;  // messages go to the second
  int unanswered_ = 0;
  bool gave_up_ = false;  // the last answer did not come
};

}  // namespace troupe
