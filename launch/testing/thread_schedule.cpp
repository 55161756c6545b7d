#include "launch/testing/thread_schedule.hpp"

#include <sched.h>

#include <memory>
#include <optional>

#include "launch/testing/baton.hpp"

namespace troupe::testing {
namespace {

// Keeps the calling thread, and those that it starts, on the processor where it is: to hand the baton to a thread of
// another one takes five times as long.
class OneProcessor {
 public:
  OneProcessor() {
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &here);
    known_ = ::sched_getaffinity(0, sizeof(before_), &before_) == 0 && ::sched_setaffinity(0, sizeof(here), &here) == 0;
  }
  ~OneProcessor() {
    if (known_) ::sched_setaffinity(0, sizeof(before_), &before_);
  }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  cpu_set_t before_{};
  bool known_ = false;
};

std::optional<OneProcessor> processor;
std::unique_ptr<Baton> baton_of_process;

}  // namespace

ThreadSchedule::ThreadSchedule(const ThreadScheduleOptions& options) {
  baton_of_process = std::make_unique<Baton>(options);
  processor.emplace();
  if (calls_hand_on()) baton_of_process->adopt_caller();
}

ThreadSchedule::~ThreadSchedule() {
  baton_of_process->release();
  baton_of_process.reset();
  processor.reset();
}

std::uint64_t ThreadSchedule::fingerprint() const { return baton_of_process->fingerprint(); }
std::uint64_t ThreadSchedule::switches() const { return baton_of_process->switches(); }
std::chrono::nanoseconds ThreadSchedule::now() const { return baton_of_process->now(); }

}  // namespace troupe::testing
