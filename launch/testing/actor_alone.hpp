#pragma once
#include <caf/all.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensor_io/base/error.hpp"

namespace troupe::testing {

/// A message that an actor sent to a peer of ActorAlone.
struct SentToPeer {
  std::string to;                  ///< the peer's name
  std::string type;                ///< of its first value, without its namespaces
  std::chrono::nanoseconds at{0};  ///< on the actor's clock
  caf::message content;
  /// Its value. Throws Error(mismatch) if it is of another type.
  template <class T>
  const T& as() const {
    if (!content.match_elements<T>()) throw Error(ErrorCode::mismatch, to, "it was sent a " + type);
    return content.get_as<T>(0);
  }
};

/// The base of ActorAlone, for any type of actor: an actor system that runs on the calling thread, on request, and a
/// clock that stands still. Not for tests by itself.
class ActorStage {
 public:
  ActorStage();
  ~ActorStage();
  ActorStage(const ActorStage&) = delete;
  ActorStage& operator=(const ActorStage&) = delete;

  /// The actor system.
  caf::actor_system& system() noexcept;
  /// Notes when `actor` ends; `reason` then gives the reason.
  void watch(const caf::strong_actor_ptr& actor, std::function<std::string()> reason);
  /// A peer of that name, which keeps its messages.
  caf::strong_actor_ptr peer(const std::string& name);
  /// Runs until there is nothing to do.
  void run();
  /// Moves the clock on, and runs the due work.
  void advance(std::chrono::nanoseconds time);
  /// The time that has passed on the clock.
  std::chrono::nanoseconds time() const;
  /// All messages to peers so far.
  const std::vector<SentToPeer>& sent() const noexcept;
  /// Whether the watched actor has ended.
  bool ended() const noexcept;
  /// Why the watched actor ended.
  const std::string& reason() const noexcept;
  /// Sends a question, runs, and returns the answer.
  caf::message ask(const caf::strong_actor_ptr& actor, caf::message question);
  /// Sends a message in the name of the peer `from`, and runs.
  void send(const caf::strong_actor_ptr& actor, caf::message content, const std::string& from);

 private:
  class Peer;
  class State;
  const std::unique_ptr<State> state_;
};

/// One typed actor by itself, for tests of its behavior: it runs only when the test requests it, on the test's thread,
/// and time passes only by `advance`. Its messages go to peers, which record them.
///
///     ActorAlone<AverageActor> alone(average_behavior);
///     const auto averaged = alone.ask(Average{communicator, copy});
///
/// Not for actors that spawn detached ones or that block. Its clock is CAF's (delayed_send, request timeouts); the
/// system's clocks go on. One thread.
template <class Handle>
class ActorAlone {
 public:
  /// `make_behavior(pointer to the actor)` returns its behavior, as for OwnActor. `make_behavior(pointer, alone)`: for
  /// an actor that needs addresses of others when it is made (`alone.template peer<OtherActor>("other")`).
  template <class Behavior>
  explicit ActorAlone(Behavior make_behavior) {
    auto failure = std::make_shared<std::string>();
    // An argument, not captured: without one CAF 0.17.6 binds a reference to a null pointer.
    const auto run = [this, make_behavior](typename Handle::pointer self, const std::shared_ptr<std::string>& why) {
      self->set_exception_handler([why](std::exception_ptr& error) -> caf::error {
        try {
          std::rethrow_exception(error);
        } catch (const std::exception& thrown) {
          *why = thrown.what();
        } catch (...) {
          *why = "an exception that is not a std::exception";
        }
        return caf::exit_reason::unhandled_exception;
      });
      if constexpr (std::is_invocable_v<Behavior, typename Handle::pointer, ActorAlone&>) {
        return make_behavior(self, *this);
      } else {
        return make_behavior(self);
      }
    };
    handle_ = stage_.system().spawn(run, failure);
    stage_.watch(caf::actor_cast<caf::strong_actor_ptr>(handle_), [failure] { return *failure; });
    stage_.run();
  }
  ~ActorAlone() {
    caf::anon_send_exit(handle_, caf::exit_reason::kill);
    stage_.run();
  }
  ActorAlone(const ActorAlone&) = delete;
  ActorAlone& operator=(const ActorAlone&) = delete;

  /// Sends it a message, runs until there is nothing to do, and returns the answer. Throws Error(user) with the
  /// handler's exception, Error(timeout) if no answer has come: `advance` may bring it, and `sent` has it then. The
  /// actor's own requests to a peer are never answered.
  template <class Question>
  auto ask(Question&& question) {
    using Answer = typename caf::response_type<typename Handle::signatures, std::decay_t<Question>>::tuple_type;
    const auto answer = stage_.ask(caf::actor_cast<caf::strong_actor_ptr>(handle_),
                                   caf::make_message(std::forward<Question>(question)));
    return values_of<Answer>(answer, std::make_index_sequence<std::tuple_size_v<Answer>>());
  }
  /// Sends it a message in the name of a peer, and runs until there is nothing to do. An answer is in `sent`.
  template <class Message>
  void send(Message&& message, const std::string& from = "test") {
    static_assert(caf::response_type<typename Handle::signatures, std::decay_t<Message>>::valid,
                  "the actor takes no such message");
    stage_.send(caf::actor_cast<caf::strong_actor_ptr>(handle_), caf::make_message(std::forward<Message>(message)),
                from);
  }
  /// Time passes: delayed messages and timeouts that are due come, in their order.
  void advance(std::chrono::nanoseconds time) { stage_.advance(time); }

  /// An address for it: messages to this address are in `sent`. The same for the same name.
  template <class Other = caf::actor>
  Other peer(const std::string& name) {
    return caf::actor_cast<Other>(stage_.peer(name));
  }
  /// All its messages to peers so far.
  const std::vector<SentToPeer>& sent() const noexcept { return stage_.sent(); }
  std::chrono::nanoseconds time() const { return stage_.time(); }         ///< that has passed since it was made
  bool ended() const noexcept { return stage_.ended(); }                  ///< it has quit, or a handler threw
  const std::string& reason() const noexcept { return stage_.reason(); }  ///< of its end; a handler's exception
  /// The actor's handle.
  const Handle& handle() const noexcept { return handle_; }

 private:
  template <class Answer, std::size_t... I>
  static auto values_of(const caf::message& answer, std::index_sequence<I...>) {
    if constexpr (sizeof...(I) == 1) {
      return std::tuple_element_t<0, Answer>(answer.get_as<std::tuple_element_t<0, Answer>>(0));
    } else {
      return Answer(answer.get_as<std::tuple_element_t<I, Answer>>(I)...);
    }
  }

  ActorStage stage_;
  Handle handle_;
};

}  // namespace troupe::testing
