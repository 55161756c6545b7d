#include "tensor_io/communicator/group_setup.hpp"

#include <algorithm>

namespace troupe {
namespace {

using std::chrono::milliseconds;

int name_of(const CommunicatorOptions& options, int rank) {
  return options.members.empty() ? rank : options.members[rank];
}

}  // namespace

milliseconds time_until(std::chrono::steady_clock::time_point deadline) {
  return std::max(milliseconds(1),
                  std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now()));
}

std::vector<std::string> all_gather_at_rendezvous(const CommunicatorOptions& options, const std::string& topic,
                                                  const std::string& value,
                                                  std::chrono::steady_clock::time_point deadline) {
  const std::string prefix = options.name + "/" + topic + "/";
  options.rendezvous->put(prefix + std::to_string(options.rank), value);
  std::vector<std::string> values(options.world_size);
  std::string missing;
  for (int r = 0; r < options.world_size; ++r) {
    if (r == options.rank) {
      values[r] = value;
      continue;
    }
    try {
      values[r] = options.rendezvous->get(prefix + std::to_string(r), time_until(deadline));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(name_of(options, r));
    }
  }
  if (!missing.empty()) {
    throw Error(
        ErrorReport{.code = ErrorCode::timeout,
                    .rank = name_of(options, options.rank),
                    .operation = "setting up communicator '" + options.name + "'",
                    .cause = missing + " did not arrive within " + std::to_string(options.timeout.count()) + " ms",
                    .remedy = "check that every rank is running and creates the same communicators in the same order"});
  }
  return values;
}

std::string agree(const CommunicatorOptions& options, const std::string& topic, const std::string& problem,
                  std::chrono::steady_clock::time_point deadline) {
  const auto problems = all_gather_at_rendezvous(options, topic, problem, deadline);
  std::string all;
  for (int r = 0; r < options.world_size; ++r) {
    if (!problems[r].empty())
      all += (all.empty() ? "rank " : "; rank ") + std::to_string(name_of(options, r)) + ": " + problems[r];
  }
  return all;
}

}  // namespace troupe
