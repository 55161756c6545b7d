#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/debug/inspection_record.hpp"

namespace troupe {

enum class DebugVerdict : std::uint8_t { ok, warn, fail, skipped };
const char* to_string(DebugVerdict verdict) noexcept;

/// The steps of `troupe debug`, in their order.
enum class DebugStep : std::uint8_t { one_rank = 1, environment, group, tensors, gradients, efficiency };
inline constexpr int kDebugSteps = 6;
const char* to_string(DebugStep step) noexcept;

struct DebugFinding {
  DebugStep step = DebugStep::one_rank;
  DebugVerdict verdict = DebugVerdict::ok;
  std::string found;
  std::string remedy = {};
  std::string subject = {};  ///< its parameter, buffer, field or setting; empty: none
  std::string page = {};     ///< of docs/, that helps
};

/// The end of one run of the program, and its ranks' records.
struct DebugRun {
  int ranks = 1;
  int exit_code = 0;
  bool timed_out = false;
  std::string ending = {};                ///< `exit code 3`, `signal 11 (Segmentation fault)`
  std::string error;                      ///< its first error, without `error: `; empty: it printed none
  std::vector<InspectionRecord> records;  ///< of the ranks that wrote one, by rank

  bool failed() const noexcept { return timed_out || (exit_code != 0 && !(records_end() && error.empty())); }
  bool records_end() const noexcept;  ///< each rank came to the end of its inspection
};

/// The findings of `troupe doctor` on the hosts.
struct HostFinding {
  std::string host, check, verdict, found, remedy;
};

struct DebugRuns {
  DebugRun alone, together;                    ///< some steps of one rank, and of several
  std::vector<DebugRun> wider;                 ///< the same of more ranks, for the pace
  DebugRun gradient_alone, gradient_together;  ///< the first step's gradient, without dropout
  std::optional<DebugRun> other_draw;          ///< gradient_alone with other random numbers; made if needed
  std::vector<HostFinding> hosts;
  int cores = 1;  ///< of this machine
};

/// The first parameter, in the model's order, whose gradient differs; empty: none. `by`: the difference, as a share.
struct GradientDifference {
  std::string name;
  double by = 0;
  int others = 0;  ///< parameters behind it that differ, too
};
std::optional<GradientDifference> gradient_difference(const DebugRun& alone, const DebugRun& together);

/// All findings about the runs, by step; each step has one finding at least. Pure.
std::vector<DebugFinding> judge(const DebugRuns& runs);

/// The table for a user, and the same for a program.
std::string to_table(const std::vector<DebugFinding>& findings);
std::string to_json(const std::vector<DebugFinding>& findings);
/// 0, or 1 if anything failed.
int exit_code(const std::vector<DebugFinding>& findings) noexcept;

}  // namespace troupe
