// A simulated cluster with its true numerics loses ranks, and ends with the bits of one that nothing happened to (the
// faults are numbered as in docs/faults.md).
#include "tests/simulator/numerics.hpp"

#include "tests/catch.hpp"

using namespace troupe;
using namespace troupe::simulator;
using namespace std::chrono_literals;

namespace {

NumericsFault at_place(const std::string& place, std::int64_t step, int slot, ChaosKind kind = ChaosKind::kill,
                       std::chrono::milliseconds lasts = 0ms) {
  return {slot, 0, {place, step, kind, lasts}};
}

NumericsOutcome keeps_its_promises(const NumericsJob& job) {
  std::string lines;
  for (const auto& fault : job.faults) lines += fault.to_string() + "\n";
  auto outcome = run_numerics(job, [&](const std::string& line) { lines += line + "\n"; });
  INFO(job.strategy << " over " << job.backend << " on " << job.ranks << " ranks\n" << lines);
  CHECK(outcome.violation.value_or("") == "");
  return outcome;
}

NumericsJob two_ranks(const std::string& strategy, std::vector<NumericsFault> faults) {
  return {strategy, "shm", 2, -1, std::move(faults), "none"};
}

}  // namespace

TEST_CASE(
    "[L05] a simulated rank that is killed at any place of a step is replaced, and the job ends with the same bits") {
  const std::string strategy = GENERATE("ddp", "fsdp");
  for (const auto* place :
       {"data", "forward", "backward", "buckets", "collective", "reduced", "vote", "voted", "committed", "optimizer"}) {
    const int slot = place[0] % 2;  // now this one, now that
    CHECK(keeps_its_promises(two_ranks(strategy, {at_place(place, 5, slot)})).generations >= 2);
  }
}

TEST_CASE("[L05] a simulated rank that is killed in a save or a heal is replaced") {
  const std::string strategy = GENERATE("ddp", "fsdp");
  CHECK(keeps_its_promises(two_ranks(strategy, {at_place("save", 8, 0)})).generations >= 2);
  // The survivor gives its state to the newcomer, and the newcomer dies over it.
  auto newcomer = at_place("heal", 6, 1);
  newcomer.life = 1;
  CHECK(keeps_its_promises(two_ranks("ddp", {at_place("forward", 6, 1), newcomer})).generations >= 3);
}

// After the first step rank 0 tells the order in which gradients came.
TEST_CASE("[L05] a step that is committed stays so when rank 0 dies before it has told the new order of buckets") {
  for (const auto* place : {"committed", "optimizer"}) keeps_its_promises(two_ranks("ddp", {at_place(place, 0, 0)}));
}

TEST_CASE("[L05] what PowerSGD owes after a committed step is still owed when the connections break") {
  for (const std::int64_t step : {0, 5}) {
    for (const auto* place : {"forward", "reduced", "vote", "voted", "committed", "optimizer"}) {
      auto job = two_ranks("ddp", {at_place(place, step, 0, ChaosKind::net)});
      job.comm_hook = "powersgd";
      keeps_its_promises(job);
    }
  }
}

TEST_CASE("[L05] sharded ranks that lose one in their first step go back to buffers that no forward has moved") {
  keeps_its_promises(two_ranks("fsdp", {at_place("optimizer", 0, 1)}));
}

TEST_CASE(
    "[L05] fault 8: a simulated rank that stands still for longer than it may is killed and replaced, a shorter stop "
    "changes nothing") {
  CHECK(keeps_its_promises(two_ranks("ddp", {at_place("backward", 5, 1, ChaosKind::stop, 4'000ms)})).generations >= 2);
  keeps_its_promises(two_ranks("fsdp", {at_place("backward", 5, 1, ChaosKind::stop, 100ms)}));
}

TEST_CASE("[L05] fault 6: simulated ranks that all die begin anew from their last checkpoint") {
  const auto outcome = keeps_its_promises(two_ranks("ddp", {at_place("forward", 10, 0), at_place("forward", 10, 1)}));
  CHECK(outcome.starts == 2);
}

TEST_CASE("[L05] simulated ranks with broken connections, a full disk or little time go on") {
  CHECK(keeps_its_promises(two_ranks("fsdp", {at_place("forward", 5, 0, ChaosKind::net)})).generations >= 2);
  keeps_its_promises(
      two_ranks("ddp", {at_place("forward", 7, 1, ChaosKind::disk), at_place("vote", 7, 0, ChaosKind::slow, 300ms)}));
}

TEST_CASE("[L05] fault 40: seeds of faults on simulated clusters, ddp and fsdp on 2 to 4 ranks, change no bit") {
  int generations = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    INFO("./dev simulate --numerics 1 " << seed << " --log");
    generations += keeps_its_promises(numerics_job_of_seed(seed)).generations - 1;
  }
  CHECK(generations > 5);
}
