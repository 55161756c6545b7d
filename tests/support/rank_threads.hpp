#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/communicator/conformance/rank_threads.hpp"

namespace troupe::test {

/// A back end and how its ranks are laid out, for suites that run over all of them.
struct Backend {
  std::string name;         // what a test prints
  std::string backend;      // CommunicatorOptions::backend
  bool in_windows = false;  // tensors from allocate()
  std::function<std::string(int)> host = [](int) { return std::string("here"); };
  std::shared_ptr<NcclApi> nccl;
  c10::Device device = c10::kCPU;
};

inline std::vector<Backend> all_backends() {
  return {
      {"shm", "shm"},
      {"shm, tensors from allocate()", "shm", true},
      {"gloo", "gloo"},
      {"hierarchical, hosts of unequal size", "hierarchical", true,
       [](int rank) { return std::string(rank % 3 == 2 ? "b" : "a"); }},
  };
}

using conformance::RankFailure;

struct GroupOptions {
  Backend backend;
  int world_size = 2;
  std::chrono::milliseconds timeout{20'000};
  std::shared_ptr<Rendezvous> rendezvous;  // empty: one of its own
};

using RankBody = std::function<void(Communicator&)>;

/// Runs `body` on a thread per rank, each with its own communicator of one group. Returns what each threw, by rank.
inline std::vector<std::optional<RankFailure>> run_ranks_catching(const GroupOptions& group, const RankBody& body) {
  const auto rendezvous = group.rendezvous ? group.rendezvous : std::make_shared<LocalRendezvous>();
  const auto make = [&](int rank) {
    CommunicatorOptions options;
    options.rank = rank;
    options.world_size = group.world_size;
    options.backend = group.backend.backend;
    options.host = group.backend.host(rank);
    options.timeout = group.timeout;
    options.rendezvous = rendezvous;
    options.nccl = group.backend.nccl;
    options.device = group.backend.device;
    return make_communicator(options);
  };
  return conformance::run_rank_threads(group.world_size, make, body);
}

/// The same where nobody may fail: throws the first failure with its rank.
inline void run_ranks(const GroupOptions& group, const RankBody& body) {
  const auto failures = run_ranks_catching(group, body);
  for (std::size_t r = 0; r < failures.size(); ++r) {
    if (failures[r])
      throw std::runtime_error("rank " + std::to_string(r) + " on " + group.backend.name + ": " + failures[r]->text);
  }
}

/// Catch2's assertions are for one thread; ranks throw.
using conformance::require;

}  // namespace troupe::test
