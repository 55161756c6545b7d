#pragma once
#include <caf/actor.hpp>
#include <caf/blocking_actor.hpp>
#include <caf/scoped_execution_unit.hpp>

namespace troupe {

/// Mailbox of the thread that makes it, as caf::scoped_actor, with two differences. A deadline is one of the steady
/// clock: CAF 0.17.6 waits for a time of day, which moves if the clock is set. And a message wakes the thread without a
/// lock that the thread needs first (on one core this saves two switches of threads: bench_wake). Messages after its
/// end are dropped.
class ThreadActor {
 public:
  explicit ThreadActor(caf::actor_system& system);
  ~ThreadActor();
  ThreadActor(const ThreadActor&) = delete;
  ThreadActor& operator=(const ThreadActor&) = delete;

  caf::blocking_actor& operator*() const noexcept { return *actor_; }
  caf::blocking_actor* operator->() const noexcept { return actor_; }
  /// The address that others send to.
  caf::actor handle() const { return caf::actor_cast<caf::actor>(address_); }

 private:
  caf::scoped_execution_unit context_;
  caf::strong_actor_ptr address_;
  caf::blocking_actor* actor_;
};

}  // namespace troupe
