#include "launch/testing/thread_schedule.hpp"

#include <memory>

#include "launch/testing/baton.hpp"

namespace troupe::testing {
namespace {

std::unique_ptr<Baton> baton_of_process;

}  // namespace

ThreadSchedule::ThreadSchedule(const ThreadScheduleOptions& options) {
  baton_of_process = std::make_unique<Baton>(options);
  baton_of_process->adopt_caller();
}

ThreadSchedule::~ThreadSchedule() {
  baton_of_process->release();
  baton_of_process.reset();
}

std::uint64_t ThreadSchedule::fingerprint() const { return baton_of_process->fingerprint(); }
std::uint64_t ThreadSchedule::switches() const { return baton_of_process->switches(); }
std::chrono::nanoseconds ThreadSchedule::now() const { return baton_of_process->now(); }

}  // namespace troupe::testing
