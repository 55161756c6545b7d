#include "tensor_io/communicator/communicator_errors.hpp"

namespace troupe {

std::string name_ranks(const CommunicatorOptions& options, const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(options.members.empty() ? ranks[i] : options.members[ranks[i]]);
  }
  return text;
}

ErrorReport mismatch_report(const CommunicatorOptions& options, const std::vector<int>& ranks,
                            const std::vector<CollectiveRecord>& records) {
  struct Group {
    std::uint64_t fingerprint;
    const CollectiveRecord* record;
    std::vector<int> ranks;
  };
  std::vector<Group> groups;  // ranks that agree, in order of their first
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto fingerprint = records[i].fingerprint();
    auto group = groups.begin();
    while (group != groups.end() && group->fingerprint != fingerprint) ++group;
    if (group == groups.end()) group = groups.insert(group, {fingerprint, &records[i], {}});
    group->ranks.push_back(ranks[i]);
  }
  std::string cause;
  for (const auto& group : groups) {
    cause += (cause.empty() ? "" : ", ") + name_ranks(options, group.ranks) +
             (group.ranks.size() == 1 ? " is at " : " are at ") + group.record->describe() + ", call " +
             std::to_string(group.record->sequence);
  }
  return ErrorReport{.code = ErrorCode::mismatch,
                     .cause = cause,
                     .remedy = "every rank must make the same calls, with the same shapes, in the same order"};
}

}  // namespace troupe
