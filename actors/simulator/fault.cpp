#include "actors/simulator/fault.hpp"

#include "actors/simulator/draw.hpp"

namespace troupe::simulator {
namespace {

using std::chrono::milliseconds;

std::string text(milliseconds time) { return std::to_string(time.count()) + " ms"; }

}  // namespace

const std::vector<std::string>& fault_points() {
  static const std::vector<std::string> points{"forward", "reduced", "vote",    "voted",   "committed",
                                               "heal",    "save",    "written", "publish", "published"};
  return points;
}

std::string Fault::to_string() const {
  const auto when = " at " + text(at);
  const auto rank = "rank " + std::to_string(target);
  switch (kind) {
    case FaultKind::kill_rank: return "kill " + rank + when;
    case FaultKind::kill_rank_at: return "kill " + rank + " at '" + point + "' of step " + std::to_string(step);
    case FaultKind::kill_agent: return "kill the agent of host " + std::to_string(target) + when;
    case FaultKind::kill_coordinator: return "kill the coordinator" + when;
    case FaultKind::kill_at_journal:
      return "kill the coordinator " + std::string(lasts.count() == 0 ? "before" : "after") + " it writes generation " +
             std::to_string(step);
    case FaultKind::stop_rank: return "stop " + rank + when + " for " + text(lasts);
    case FaultKind::stop_coordinator: return "stop the coordinator" + when + " for " + text(lasts);
    case FaultKind::stop_agent:
      return "stop the agent of host " + std::to_string(target) + when + " for " + text(lasts);
    case FaultKind::part_hosts:
      return "cut hosts up to " + std::to_string(target) + " off the others" + when + " for " + text(lasts);
    case FaultKind::cut_link: return "break the connection of " + rank + " to the coordinator" + when;
    case FaultKind::break_data: return "break the data connections of " + rank + when;
    case FaultKind::slow_rank: return "slow " + rank + when + " for " + text(lasts);
    case FaultKind::slow_network: return "slow the network" + when + " for " + text(lasts);
    case FaultKind::full_run_disk: return "fill the disk of the run folder" + when;
    case FaultKind::full_disk: return "fill the disk of " + rank + when;
    case FaultKind::break_data_at:
      return "break the data connections of " + rank + " after '" + point + "' of step " + std::to_string(step);
    case FaultKind::leave: return "let " + rank + " leave" + (lasts.count() == 0 ? " for good" : "") + when;
    case FaultKind::replay: return "repeat old messages" + when + ", up to " + text(lasts) + " late";
  }
  return {};
}

std::vector<Fault> draw_faults(std::uint64_t seed, int ranks, int hosts, std::int64_t steps) {
  Draw draw(seed, "faults");
  std::vector<Fault> faults(static_cast<std::size_t>(draw.in(1, 8)));
  for (auto& fault : faults) {
    // Ranks die more often than all else.
    const auto number = draw.in(-6, static_cast<int>(FaultKind::break_data_at));
    fault.kind = number >= 0    ? static_cast<FaultKind>(number)
                 : number >= -2 ? FaultKind::kill_rank
                                : FaultKind::kill_rank_at;
    fault.at = milliseconds(draw.in(300, 5'000));
    const bool of_host = fault.kind == FaultKind::kill_agent || fault.kind == FaultKind::stop_agent ||
                         fault.kind == FaultKind::part_hosts;
    fault.target = static_cast<int>(draw.in(0, (of_host ? hosts : ranks) - 1));
    // Short, about the deadlines, and long.
    const auto length = draw.in(0, 2);
    fault.lasts = milliseconds(length == 0   ? draw.in(50, 900)
                               : length == 1 ? draw.in(900, 4'000)
                                             : draw.in(4'000, 30'000));
    fault.step = draw.in(0, steps - 1);
    const auto& points = fault_points();
    fault.point = points[draw.next() % points.size()];
    if (fault.kind == FaultKind::kill_at_journal) {
      fault.step = draw.in(1, 4);
      fault.lasts = milliseconds(draw.in(0, 1));
    }
  }
  // By another draw, so that the others of a seed are what they were.
  Draw disk(seed, "run disk");
  if (disk.once_in(4)) {
    faults.push_back({.kind = FaultKind::full_run_disk, .at = milliseconds(disk.in(0, 5'000))});
    if (disk.once_in(2)) faults.push_back({.kind = FaultKind::kill_coordinator, .at = milliseconds(disk.in(0, 8'000))});
  }
  Draw leaving(seed, "leave");
  for (auto times = leaving.once_in(3) ? leaving.in(1, 3) : 0; times > 0; --times) {
    faults.push_back({.kind = FaultKind::leave,
                      .at = milliseconds(leaving.in(300, 5'000)),
                      .target = static_cast<int>(leaving.in(0, ranks - 1)),
                      .lasts = milliseconds(leaving.in(0, 1))});
  }
  return faults;
}

}  // namespace troupe::simulator
