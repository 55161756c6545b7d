#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/program/job.hpp"
#include "launch/testing/cluster_fault.hpp"
#include "tensor_io/layout/named_tensors.hpp"

namespace troupe::testing {

/// The size and the order of a Cluster.
struct ClusterOptions {
  int hosts = 1;
  int ranks_per_host = 2;
  int spares = 0;          ///< ranks that wait for another to be lost
  std::uint64_t seed = 1;  ///< of the threads' order
  /// All threads at once, in real time: faster where ranks compute much; promises no order.
  bool parallel = false;
};

/// Settings of a job, as its flags have them. Without them a job writes no files: no records, no checkpoints.
struct Settings {
  std::int64_t max_steps = 0;               ///< 0: as many as the epochs have
  std::int64_t epochs = 0;                  ///< 0: the setting's default
  std::int64_t batch_size = 0;              ///< 0: the setting's default
  std::string strategy;                     ///< empty: the setting's default
  std::map<std::string, std::string> more;  ///< by name: {{"fsdp_mode", "zero2"}}
};

/// Tensors by name; equal: the same names, shapes, types and bits.
class Weights {
 public:
  Weights() = default;
  explicit Weights(NamedTensors tensors) : tensors_(std::move(tensors)) {}
  /// All tensors.
  const NamedTensors& tensors() const noexcept { return tensors_; }
  const at::Tensor& at(const std::string& name) const;  ///< throws Error(usage)
  /// The first difference, for a person; empty: they are equal.
  std::string difference(const Weights& other) const;
  friend bool operator==(const Weights& a, const Weights& b) { return a.difference(b).empty(); }

 private:
  NamedTensors tensors_;
};

/// A membership that the job had.
struct SeenMembership {
  std::uint64_t generation = 0;
  std::vector<int> slots;        ///< by rank
  std::int64_t resume_step = 0;  ///< steps done when it began
};

/// What came of a job.
class TrainedRun {
 public:
  /// The exit code that a process of this job would have; 0: it ended well.
  int exit_code() const noexcept { return code_; }
  const std::string& error() const noexcept {
    return error_;
  }                                ///< the job's verdict, or what a rank failed of; empty: none did
  const Weights& weights() const;  ///< parameters and buffers at its end; throws where it did not end with 0
  /// The mean of all ranks, by step; steps count from 1 here, so that At{"vote", 7} is in step 8.
  const std::map<std::int64_t, double>& losses() const noexcept { return losses_; }
  /// Steps that were applied, in their order, from 1: one that comes twice was run again after all went back to a
  /// snapshot.
  const std::vector<std::int64_t>& steps() const noexcept { return steps_; }
  /// All memberships, in their order.
  const std::vector<SeenMembership>& memberships() const noexcept { return memberships_; }
  const std::vector<std::string>& log(Rank rank) const;  ///< its lines, of all its lives
  /// The coordinator's lines.
  const std::vector<std::string>& coordinator_log() const noexcept { return coordinator_log_; }
  /// Between ranks, agents and coordinator, and between strategies and their own actors, in their order.
  const std::vector<SentMessage>& messages() const noexcept { return messages_; }
  /// Faults that never came: no rank came by their place, or no such message was sent.
  const std::vector<ClusterFault>& missed() const noexcept { return missed_; }
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }  ///< of the threads' order; parallel: 0
  std::chrono::nanoseconds time() const noexcept { return time_; }     ///< of the cluster's clock

 private:
  friend class ClusterRun;
  int code_ = 0;
  std::string error_;
  Weights weights_;
  std::map<std::int64_t, double> losses_;
  std::vector<std::int64_t> steps_;
  std::vector<SeenMembership> memberships_;
  std::map<int, std::vector<std::string>> logs_;
  std::vector<std::string> coordinator_log_;
  std::vector<SentMessage> messages_;
  std::vector<ClusterFault> missed_;
  std::uint64_t fingerprint_ = 0;
  std::chrono::nanoseconds time_{0};
};

/// What `explore` looks for, and found. A run may also end with 75 where two ranks were lost, or one in the first step:
/// perhaps no rank had the state any more.
struct ExploreOptions {
  int runs = 200;
  int most_faults = 3;  ///< in a run
  Settings settings;
  /// What is wrong with a run that may not have lost all its state; empty: nothing.
  std::function<std::string(const TrainedRun& run, const TrainedRun& undisturbed)> judge;  ///< default: `same_weights`
};
/// It ended with 0, each of the undisturbed run's steps was applied, and the weights are that run's to the bit; but for
/// rounding (1e-4, 1e-5) where fewer ranks went on for a time, which add in another order.
std::string same_weights(const TrainedRun& run, const TrainedRun& undisturbed);
/// The same but for the weights: for strategies whose ranks differ, so that one which dies takes something with it.
std::string same_steps(const TrainedRun& run, const TrainedRun& undisturbed);

/// What `explore` found.
struct Exploration {
  int runs = 0;
  std::string wrong;  ///< of the first run that failed, with as few faults as still fail; empty: none did
  std::vector<ClusterFault> faults;  ///< of that run
  std::uint64_t seed = 0;            ///< and its order
  std::string test;                  ///< the same as a test to paste
};

/// Hosts and ranks in one process, for tests: a job trains on them with true numbers while they are hurt at places that
/// the test names. Ranks are threads, which run one at a time in an order that the seed decides, on a clock that jumps
/// over waits (ThreadSchedule): the same test goes the same way each time.
///
///     Cluster cluster({.hosts = 2, .ranks_per_host = 2});
///     cluster.kill(Rank{1}, At{"vote", 7});
///     const auto run = cluster.train(job, {.max_steps = 20});
///     REQUIRE(run.exit_code() == 0);
///     REQUIRE(run.weights() == cluster.undisturbed(job, {.max_steps = 20}).weights());
///
/// One at a time in a process; the main thread. A job's functions run as they do under troupe::run.
class Cluster {
 public:
  explicit Cluster(ClusterOptions options = {}) : options_(options) {}

  /// As SIGKILL: the rank's process is gone, and another takes its place.
  Cluster& kill(Rank rank, At at);
  /// It stands still, as by SIGSTOP.
  Cluster& stop(Rank rank, At at, std::chrono::milliseconds lasts);
  /// Its steps take so many times as long, from the beginning. A step takes 10 ms of the cluster's clock; in parallel
  /// mode it takes what it takes, and 10 ms longer for each time more than one.
  Cluster& slow(Rank rank, Times times);
  /// Its host wants it gone: it leaves after the step.
  Cluster& leave(Rank rank, At at);
  /// From when the first rank of either host comes by the place, nothing goes between the two for so long: collectives
  /// wait, or fail past their deadline, and messages to and from the coordinator, which is on host 0, arrive when it is
  /// over. Not in parallel mode.
  Cluster& cut(Host host, Host other, At at, std::chrono::milliseconds lasts);
  /// The message never arrives. TCP loses none while a connection lives: it shows what the job does about it.
  Cluster& drop(Message message);
  /// It arrives so much later, and what is sent the same way behind it no earlier.
  Cluster& delay(Message message, std::chrono::milliseconds by);
  /// It arrives behind the next one that goes the same way.
  Cluster& reorder(Message message);
  /// Faults that have been planned.
  const std::vector<ClusterFault>& faults() const noexcept { return faults_; }
  /// Plans a fault.
  Cluster& add(ClusterFault fault);
  /// Forgets all planned faults.
  Cluster& clear();

  /// Throws Error(usage) where a fault never came, though the job ended with 0: the test would have tested nothing.
  TrainedRun train(const Job& job, const Settings& settings = {}) const;
  /// The same without faults.
  TrainedRun undisturbed(const Job& job, const Settings& settings = {}) const;
  /// Draws faults and orders, run after run, until one fails; takes faults away as long as it still does.
  Exploration explore(const Job& job, const ExploreOptions& options = {}) const;

 private:
  TrainedRun try_to_train(const Job& job, const Settings& settings) const;

  ClusterOptions options_;
  std::vector<ClusterFault> faults_;
};

}  // namespace troupe::testing
