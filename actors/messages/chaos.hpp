#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe {

/// A fault that `--chaos` injects into a rank.
enum class ChaosKind : std::uint8_t {
  kill,  ///< SIGKILL
  stop,  ///< SIGSTOP, and SIGCONT later: 0.5 to 5 s
  slow,  ///< half of the time stopped, in turns of 50 ms: 2 to 8 s
  nan,   ///< the gradients of its next backward are not numbers
  net,   ///< its data connections break
  disk,  ///< its next checkpoint finds the disk full
  leave  ///< its host wants it gone: it leaves between two steps, and another takes its place
};
std::string name_of(ChaosKind kind);

struct ChaosOptions {
  std::uint64_t seed = 1;
  std::chrono::milliseconds mtbf{30'000};  ///< mean time between faults of the job
  std::vector<ChaosKind> kinds{ChaosKind::kill, ChaosKind::stop, ChaosKind::slow, ChaosKind::net, ChaosKind::disk};
  std::uint64_t life = 0;  ///< of the coordinator: each has its own schedule
};

/// `seed=7,mtbf=30s,kinds=kill|stop`, each part optional; `+` may stand for `|`. Throws Error(usage) that names the
/// part.
ChaosOptions parse_chaos(const std::string& text);

struct ChaosEvent {
  std::chrono::milliseconds at{0};  ///< since the first step
  ChaosKind kind = ChaosKind::kill;
  int slot = 0;
  std::chrono::milliseconds lasts{0};
};

/// The faults of a job in their order: exponential gaps (a Poisson process), kind and slot uniform. In the
/// coordinator's first life they depend on the seed and the number of slots alone. So the same text means the same
/// schedule wherever the job runs.
class ChaosSchedule {
 public:
  ChaosSchedule(ChaosOptions options, int slots);
  const ChaosEvent& next() const noexcept { return next_; }
  void advance();

 private:
  ChaosOptions options_;
  int slots_;
  std::uint64_t drawn_ = 0;
  double at_ms_ = 0;
  ChaosEvent next_;
};

/// The share of its pace that a job keeps under faults: the pace of its steps beside their pace while nothing is wrong.
/// Validation and checkpoints are in both.
class Goodput {
 public:
  /// From time to time: `steps` done by the job, and whether a fault is at work since the last look.
  void observe(std::chrono::milliseconds at, std::int64_t steps, bool disturbed);
  /// 1: nothing was lost. Negative until there were steps in undisturbed time.
  double share() const noexcept;
  std::chrono::milliseconds time() const noexcept { return time_; }
  std::int64_t steps() const noexcept { return steps_; }

 private:
  bool started_ = false;
  std::chrono::milliseconds last_{0}, time_{0}, quiet_time_{0};
  std::int64_t last_steps_ = 0, steps_ = 0, quiet_steps_ = 0;
};

/// A job under `--chaos`: the faults that are due, and their results.
class ChaosRun {
 public:
  ChaosRun(const ChaosOptions& options, int slots) : schedule_(options, slots) {}

  /// The faults since the last call, at `at` since the first step.
  std::vector<ChaosEvent> due(std::chrono::milliseconds at);
  /// The result of one of them: it hit a living rank, or there was none in its slot.
  void happened(const ChaosEvent& event, bool hit);
  /// `whole`: all ranks are there and train.
  void observe(std::chrono::milliseconds at, std::int64_t steps, bool whole);
  /// One line.
  std::string summary() const;

 private:
  ChaosSchedule schedule_;
  Goodput goodput_;
  std::chrono::milliseconds over_at_{0};  // the end of the last fault
  std::int64_t steps_ = 0, steps_at_fault_ = -1;
  std::map<ChaosKind, int> hits_;
  int misses_ = 0;
};

}  // namespace troupe
