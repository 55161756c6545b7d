#pragma once
#include <string>

#include "actors/messages/messages.hpp"

namespace troupe {

/// What the coordinator believes of a message that came over the network, before it looks at what the message wants:
/// every number within its range, every text of a length that its sender could have meant, names that a log line can
/// hold. A peer that has the job's keys is trusted, its memory and its version are not. Each returns the reason for
/// which the message is refused, naming the field; empty: none.
std::string problem_with(const JoinJob& join);
std::string problem_with(const JoinNode& node);
std::string problem_with(const PutValue& value);
std::string problem_with(const CollectiveState& state);
std::string problem_with(const RankExited& exit);
std::string problem_with(const LeaveNotice& notice);
std::string problem_with(const RankInterrupted& report);
/// Told on to all ranks. CAF 0.17 never comes to an end of writing a number that is infinite or none.
std::string problem_with(const CheckpointPublished& message);

/// Slots of a job, spares counted.
constexpr std::int32_t kMostSlots = 1 << 16;

}  // namespace troupe
