#pragma once
#include <string>

#include "actors/messages/messages.hpp"

namespace troupe {

/// The checks of a message that came over the network, before the coordinator looks at its purpose. Every number must
/// be within its range, every text no longer than a sender could need, and every name fit for a log line. A peer that
/// has the job's keys is trusted; its memory and its version are not. Each returns the reason to refuse the message,
/// with the field; empty: none.
std::string problem_with(const JoinJob& join);
std::string problem_with(const JoinNode& node);
std::string problem_with(const PutValue& value);
std::string problem_with(const CollectiveState& state);
std::string problem_with(const RankExited& exit);
std::string problem_with(const LeaveNotice& notice);
std::string problem_with(const RankInterrupted& report);
/// Passed on to all ranks. CAF 0.17 never ends writing a number that is infinite or NaN.
std::string problem_with(const CheckpointPublished& message);

/// Slots of a job, spares counted.
constexpr std::int32_t kMostSlots = 1 << 16;

}  // namespace troupe
