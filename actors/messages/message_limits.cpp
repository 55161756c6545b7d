#include "actors/messages/message_limits.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace troupe {
namespace {

constexpr std::size_t kName = 256, kKey = 1024, kText = 64 << 10, kValue = 1 << 20, kVotes = 64 << 20;

std::string slot(std::int32_t number) {
  if (number >= 0 && number < kMostSlots) return {};
  return "slot " + std::to_string(number) + " is not one of 0 to " + std::to_string(kMostSlots - 1);
}

std::string length(const char* field, std::string_view text, std::size_t most) {
  if (text.size() <= most) return {};
  return std::string(field) + " has " + std::to_string(text.size()) + " bytes, more than " + std::to_string(most);
}

// A name is printed: it stays on its line.
std::string name(const char* field, std::string_view text) {
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(text.begin(), text.end(), control)) return std::string(field) + " has control characters";
  return length(field, text, kName);
}

template <class... Checks>
std::string first_of(const Checks&... checks) {
  std::string found;
  ((found = found.empty() ? checks : found), ...);
  return found;
}

}  // namespace

std::string problem_with(const JoinJob& join) {
  return first_of(slot(join.process.slot), name("job_id", join.job_id), name("host", join.host),
                  name("build_id", join.build_id), name("config_hash", join.config_hash));
}

std::string problem_with(const JoinNode& node) {
  auto problem = first_of(name("job_id", node.job_id), name("host", node.host));
  if (problem.empty() && node.started.size() > static_cast<std::size_t>(kMostSlots))
    problem = "started has " + std::to_string(node.started.size()) + " processes";
  for (const auto& process : node.started) {
    if (problem.empty()) problem = slot(process.slot);
  }
  return problem;
}

std::string problem_with(const PutValue& value) {
  return first_of(length("key", value.key, kKey), length("value", value.value, kValue));
}

std::string problem_with(const CollectiveState& state) {
  return first_of(slot(state.rank), length("communicator", state.communicator, kKey), length("what", state.what, kText),
                  length("program_what", state.program_what, kText));
}

std::string problem_with(const RankExited& exit) { return slot(exit.process.slot); }

std::string problem_with(const LeaveNotice& notice) {
  return first_of(slot(notice.process.slot), name("why", notice.why));
}

std::string problem_with(const RankInterrupted& report) {
  return first_of(slot(report.process.slot), length("why", report.why, kText), length("votes", report.votes, kVotes),
                  length("save", report.save, kKey));
}

std::string problem_with(const CheckpointPublished& message) {
  const auto& saved = message.ended.saved;
  return first_of(slot(message.process.slot), length("path", saved.path, kText),
                  length("warning", saved.warning, kText),
                  std::isfinite(saved.seconds) ? std::string() : std::string("seconds is not finite"));
}

}  // namespace troupe
