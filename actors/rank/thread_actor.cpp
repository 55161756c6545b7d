#include "actors/rank/thread_actor.hpp"

#include <caf/actor_system.hpp>
#include <caf/detail/sync_request_bouncer.hpp>

#include <semaphore.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>

namespace troupe {
namespace {

/// In the places of CAF's mutex and condition variable: its mailbox tells by atomic operations whether somebody waits,
/// and calls `notify_one` once for each time that somebody did. A wake-up that comes too late for its wait ends the
/// next one early, and CAF looks again.
struct NoLock {
  void lock() noexcept {}
  void unlock() noexcept {}
};
class Wake {
 public:
  Wake() { sem_init(&permits_, 0, 0); }
  ~Wake() { sem_destroy(&permits_); }
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  void notify_one() { sem_post(&permits_); }
  // A signal may end either early; CAF waits again.
  void wait(std::unique_lock<NoLock>&) { sem_wait(&permits_); }
  template <class TimeOfDay>
  std::cv_status wait_until(std::unique_lock<NoLock>&, const TimeOfDay&) {
    return sem_clockwait(&permits_, CLOCK_MONOTONIC, &deadline) != 0 && errno == ETIMEDOUT ? std::cv_status::timeout
                                                                                           : std::cv_status::no_timeout;
  }
  timespec deadline{};  ///< of the wait under way, by the steady clock

 private:
  sem_t permits_{};  // not std::counting_semaphore: before GCC 13 it may sleep for ever (libstdc++'s bug 104928)
};

class ThreadMailbox final : public caf::blocking_actor {
 public:
  explicit ThreadMailbox(caf::actor_config& config) : caf::blocking_actor(config) {}

  const char* name() const override { return "thread_actor"; }
  void act() override {}
  void launch(caf::execution_unit*, bool, bool) override {
    register_at_system();
    initialize();
  }
  void enqueue(caf::mailbox_element_ptr message, caf::execution_unit*) override {
    const auto id = message->mid;
    const auto sender = message->sender;
    if (mailbox().synchronized_push_back(lock_, wake_, std::move(message)) || !id.is_request()) return;
    caf::detail::sync_request_bouncer bounce{caf::make_error(caf::exit_reason::normal)};
    bounce(sender, id);
  }

 protected:
  void await_data() override { mailbox().synchronized_await(lock_, wake_); }
  bool await_data(timeout_type time_of_day) override {
    const auto left = std::chrono::ceil<std::chrono::nanoseconds>(time_of_day - timeout_type::clock::now());
    const auto deadline = std::chrono::steady_clock::now().time_since_epoch() + left;
    const auto seconds = std::chrono::floor<std::chrono::seconds>(deadline);
    wake_.deadline = {seconds.count(), (deadline - seconds).count()};
    return mailbox().synchronized_await(lock_, wake_, time_of_day);
  }

 private:
  NoLock lock_;
  Wake wake_;
};

caf::strong_actor_ptr spawn_mailbox(caf::actor_system& system, caf::execution_unit& context) {
  caf::actor_config config{&context};
  return caf::actor_cast<caf::strong_actor_ptr>(system.spawn_impl<ThreadMailbox, caf::no_spawn_options>(config));
}

}  // namespace

ThreadActor::ThreadActor(caf::actor_system& system)
    : context_(&system),
      address_(spawn_mailbox(system, context_)),
      actor_(static_cast<caf::blocking_actor*>(caf::actor_cast<caf::abstract_actor*>(address_))) {}

ThreadActor::~ThreadActor() {
  if (!actor_->getf(caf::abstract_actor::is_terminated_flag)) actor_->cleanup(caf::exit_reason::normal, &context_);
}

}  // namespace troupe
