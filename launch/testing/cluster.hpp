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
  /// All threads at once, in real time: faster if ranks compute much; promises no order.
  bool parallel = false;
};

/// Settings of a job, as in its flags. Without them a job writes no files: no records, no checkpoints.
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
  /// The first difference, for the user; empty: they are equal.
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

/// The result of a job.
class TrainedRun {
 public:
  /// The exit code that a process of this job would have; 0: it ended well.
  int exit_code() const noexcept { return code_; }
  const std::string& error() const noexcept {
    return error_;
  }                                ///< the job's verdict, or a rank's failure; empty: none failed
  const Weights& weights() const;  ///< parameters and buffers at its end; throws if it did not end with 0
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
  /// Between ranks, agents and coordinator, and between strategies and their actors, in their order.
  const std::vector<SentMessage>& messages() const noexcept { return messages_; }
  /// Faults that never came: no rank came to their place, or no such message was sent.
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

/// The options of `explore`. A run may also end with 75 if two ranks were lost, or one in the first step: perhaps no
/// rank had the state any more.
struct ExploreOptions {
  int runs = 200;
  int most_faults = 3;  ///< in a run
  Settings settings;
  /// The error of a run that may not have lost all its state; empty: none.
  std::function<std::string(const TrainedRun& run, const TrainedRun& undisturbed)> judge;  ///< default: `same_weights`
};
/// It ended with 0, each of the undisturbed run's steps was applied, and the weights are that run's to the bit. Only
/// rounding may differ (1e-4, 1e-5) if fewer ranks, which add in another order, went on for a time.
std::string same_weights(const TrainedRun& run, const TrainedRun& undisturbed);
/// The same but for the weights: for strategies whose ranks differ, so that a dead one's part is lost.
std::string same_steps(const TrainedRun& run, const TrainedRun& undisturbed);

/// The result of `explore`.
struct Exploration {
  int runs = 0;
  std::string wrong;  ///< of the first run that failed, with as few faults as still fail; empty: none did
  std::vector<ClusterFault> faults;  ///< of that run
  std::uint64_t seed = 0;            ///< and its order
  std::string test;                  ///< the same as a test to paste
};

/// Hosts and ranks in one process, for tests: a job trains on them with true numbers while faults hit them at places
/// that the test names. Ranks are threads, which run one at a time in an order that the seed decides. The clock jumps
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
  /// Its steps take `times` times as long, from the beginning. A step takes 10 ms of the cluster's clock; in parallel
  /// mode it takes its real time, and 10 ms longer for each time more than one.
  Cluster& slow(Rank rank, Times times);
  /// Its host wants it gone: it leaves after the step.
  Cluster& leave(Rank rank, At at);
  /// When the first rank of either host comes to the place, the connection between the two is cut for this time.
  /// Collectives wait, or fail past their deadline. Messages to and from the coordinator, which is on host 0, arrive
  /// when it is over. Not in parallel mode.
  Cluster& cut(Host host, Host other, At at, std::chrono::milliseconds lasts);
  /// The message never arrives. TCP loses none while a connection lives: this shows the job's answer.
  Cluster& drop(Message message);
  /// It arrives this much later, and later messages of the same way no earlier.
  Cluster& delay(Message message, std::chrono::milliseconds by);
  /// It arrives behind the next message of the same way.
  Cluster& reorder(Message message);
  /// Faults that have been planned.
  const std::vector<ClusterFault>& faults() const noexcept { return faults_; }
  /// Plans a fault.
  Cluster& add(ClusterFault fault);
  /// Forgets all planned faults.
  Cluster& clear();

  /// Throws Error(usage) if a fault never came, though the job ended with 0: the test would have tested nothing.
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
