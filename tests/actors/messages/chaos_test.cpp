#include "actors/messages/chaos.hpp"

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

TEST_CASE("[L05] fault 40: what --chaos is told, and what it refuses") {
  const auto all = parse_chaos("seed=7,mtbf=90s,kinds=kill|stop+nan");
  CHECK(all.seed == 7);
  CHECK((all.mtbf == 90s));
  CHECK((all.kinds == std::vector{ChaosKind::kill, ChaosKind::stop, ChaosKind::nan}));
  const auto nothing = parse_chaos("");
  CHECK((nothing.mtbf == 30s));
  CHECK(parse_chaos("mtbf=24h").mtbf == std::chrono::hours(24));
  CHECK(parse_chaos("mtbf=100ms").mtbf == std::chrono::milliseconds(100));
  CHECK(nothing.kinds.size() == 5);  // all but nan, which ends a job that was not told to skip such steps
  CHECK((parse_chaos("mtbf=1.5m").mtbf == 90s));
  const auto [text, reason] =
      GENERATE(table<std::string, std::string>({{"seed=x", "seed 'x' is not a whole number"},
                                                {"seed=-1", "seed '-1'"},
                                                {"mtbf=30", "mtbf '30' is not a time"},
                                                {"mtbf=nans", "mtbf 'nans' is not a time"},
                                                {"mtbf=1ms", "mtbf '1ms' is not a time from 100ms to 24h"},
                                                {"mtbf=1e9h", "mtbf '1e9h'"},
                                                {"kinds=", "kinds is empty"},
                                                {"kinds=kill|bite", "kind 'bite' is not one of kill, stop"},
                                                {"speed=7", "'speed=7' is not one of seed=N"},
                                                {"seed", "seed '' is not a whole number"}}));
  INFO(text);
  CHECK_THROWS_WITH(parse_chaos(text), Catch::Contains("--chaos") && Catch::Contains(reason));
}

TEST_CASE("[L05] fault 40: the same seed means the same faults, another seed others") {
  const auto first = [](std::uint64_t seed) {
    ChaosSchedule schedule({seed, 30s, parse_chaos("").kinds}, 4);
    std::vector<std::int64_t> numbers;
    for (int i = 0; i < 100; ++i, schedule.advance()) {
      const auto& event = schedule.next();
      for (const std::int64_t number :
           {event.at.count(), static_cast<std::int64_t>(event.kind), static_cast<std::int64_t>(event.slot),
            static_cast<std::int64_t>(event.lasts.count())})
        numbers.push_back(number);
    }
    return numbers;
  };
  CHECK((first(7) == first(7)));
  CHECK((first(7) != first(8)));
}

TEST_CASE("[L05] fault 40: faults come at the asked rate, to every slot and of every kind, in order") {
  const ChaosOptions options{3, 20s, {ChaosKind::kill, ChaosKind::stop, ChaosKind::slow}};
  ChaosSchedule schedule(options, 4);
  constexpr int kFaults = 20'000;
  std::map<int, int> slots;
  std::map<ChaosKind, int> kinds;
  auto last = 0ms;
  for (int i = 0; i < kFaults; ++i, schedule.advance()) {
    const auto& event = schedule.next();
    REQUIRE((event.at >= last));
    last = event.at;
    ++slots[event.slot];
    ++kinds[event.kind];
    if (event.kind == ChaosKind::kill) REQUIRE((event.lasts == 0ms));
    if (event.kind == ChaosKind::stop) REQUIRE((event.lasts >= 500ms && event.lasts <= 5s));
  }
  CHECK(static_cast<double>(last.count()) / kFaults == Approx(20'000).epsilon(0.03));
  REQUIRE(slots.size() == 4);
  for (const auto& [slot, n] : slots) CHECK(n == Approx(kFaults / 4.0).epsilon(0.05));
  REQUIRE(kinds.size() == 3);
  for (const auto& [kind, n] : kinds) CHECK(n == Approx(kFaults / 3.0).epsilon(0.05));
}

TEST_CASE("[L05] fault 40: goodput is the pace of all the time beside that of the undisturbed time") {
  Goodput goodput;
  CHECK(goodput.share() < 0);
  goodput.observe(0ms, 100, false);  // steps from before do not count
  goodput.observe(1000ms, 110, false);
  CHECK(goodput.share() == Approx(1));
  goodput.observe(2000ms, 110, true);
  CHECK(goodput.share() == Approx(0.5));
  goodput.observe(4000ms, 130, false);
  CHECK(goodput.share() == Approx(0.75));
  CHECK(goodput.steps() == 30);
}

TEST_CASE("[L05] fault 40: time is disturbed from a fault until two steps have followed and all ranks are back") {
  const ChaosOptions options{1, 1s, {ChaosKind::kill}};
  ChaosRun run(options, 2);
  ChaosSchedule same(options, 2);
  const auto at = same.next().at;
  CHECK(run.due(at - 1ms).empty());
  const auto events = run.due(at);
  REQUIRE(events.size() == 1);
  CHECK(run.due(at).empty());
  run.observe(at, 10, true);
  run.observe(at + 1s, 20, true);
  run.happened(events[0], true);
  run.happened(events[0], false);
  run.observe(at + 2s, 20, false);  // recovering
  run.observe(at + 3s, 21, true);   // one step after the fault
  run.observe(at + 4s, 31, true);
  CHECK(run.summary() ==
        "chaos: 1 faults (kill 1) and 1 without a target, in 4.0 s; 21 steps, goodput 52.5 % of the undisturbed pace");
}
