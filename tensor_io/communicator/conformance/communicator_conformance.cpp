#include "tensor_io/communicator/conformance/communicator_conformance.hpp"

#include <algorithm>
#include <memory>

#include "tensor_io/communicator/conformance/conformance_checks.hpp"
#include "tensor_io/communicator/conformance/rank_threads.hpp"

namespace troupe {
namespace conformance {
namespace {

std::vector<int> worlds_of(const ConformanceCheck& check, const CommunicatorConformanceOptions& options) {
  if (check.own_worlds || options.ranks.empty()) return check.worlds;
  std::vector<int> worlds;
  const int least = *std::min_element(check.worlds.begin(), check.worlds.end());
  std::copy_if(options.ranks.begin(), options.ranks.end(), std::back_inserter(worlds),
               [least](int world_size) { return world_size >= least; });
  return worlds;
}

void run_group(const ConformanceCheck& check, int world_size, const CommunicatorConformanceOptions& options,
               CommunicatorConformanceReport& report) {
  const auto where = std::string(check.name) + " on " + std::to_string(world_size) + " ranks";
  if (options.log) options.log(where);
  const auto rendezvous = std::make_shared<LocalRendezvous>();
  const auto make = [&](int rank) {
    CommunicatorOptions of_rank;
    of_rank.rank = rank;
    of_rank.world_size = world_size;
    of_rank.backend = options.name;
    of_rank.host = options.host(rank);
    of_rank.timeout = check.timeout.count() > 0 ? check.timeout : options.timeout;
    of_rank.rendezvous = rendezvous;
    return options.factory ? options.factory(std::move(of_rank)) : make_communicator(std::move(of_rank));
  };
  ConformanceRun run{options, world_size};
  const auto failures = run_rank_threads(world_size, make, [&](Communicator& group) { check.body(run, group); });
  ++report.groups;
  bool failed = false;
  for (std::size_t r = 0; r < failures.size(); ++r) {
    if (!failures[r]) continue;
    failed = true;
    report.failures.push_back(where + ": rank " + std::to_string(r) + ": " + failures[r]->text);
  }
  if (failed || check.after == nullptr) return;
  try {
    check.after(run);
  } catch (const std::exception& error) {
    report.failures.push_back(where + ": " + error.what());
  }
}

}  // namespace
}  // namespace conformance

std::string CommunicatorConformanceReport::to_string() const {
  if (passed()) return name + " conforms: " + std::to_string(groups) + " groups of ranks";
  std::string text;
  for (const auto& failure : failures) text += name + ": " + failure + "\n";
  return text;
}

std::vector<RegisteredName> communicator_checks() {
  std::vector<RegisteredName> checks;
  for (const auto& check : conformance::conformance_checks()) checks.push_back({check.name, check.claim});
  return checks;
}

CommunicatorConformanceReport communicator_conformance(const CommunicatorConformanceOptions& options) {
  CommunicatorConformanceReport report;
  report.name = options.name;
  bool found = false;
  for (const auto& check : conformance::conformance_checks()) {
    if (!options.only.empty() && options.only != check.name) continue;
    found = true;
    for (const int world_size : conformance::worlds_of(check, options))
      conformance::run_group(check, world_size, options, report);
  }
  if (!found) {
    throw Error(ErrorCode::usage, "communicator_conformance", "there is no check '" + options.only + "'",
                "known: " + name_list(communicator_checks()));
  }
  return report;
}

}  // namespace troupe
