#pragma once
#include <caf/all.hpp>

#include <atomic>
#include <memory>
#include <vector>

#include "actors/messages/messages.hpp"
#include "actors/rank/comm_hook.hpp"
#include "actors/rank/rank_supervisor.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/device/device_timer.hpp"

namespace troupe {

/// The buckets of the coming steps, in launch order, and the hook that reduces them. Sent by reference; Compute does
/// not touch a bucket between BucketReady and BucketsReduced.
struct InstallPlan {
  std::shared_ptr<std::vector<BucketView>> buckets;
  std::shared_ptr<CommHook> hook;
};

/// The reducer's communicator of a new generation: it forgets the step that was under way. Answered once it has left
/// the old communicator.
struct InstallCommunicator {
  std::shared_ptr<Communicator> communicator;
};

/// Shared between Compute and Reducer: atomics instead of messages.
struct StepProgress {
  std::atomic<std::int64_t> backward_ended{-1};  ///< the step whose backward is over
  std::atomic<std::int64_t> launched{0};         ///< buckets launched since the start of the run
};

/// Launches every bucket collective of its rank, in plan order, from one thread. A bucket that is full before its turn
/// is held back. Buckets are never launched in the order of arrival: it differs between ranks, and they could wait for
/// each other in a circle.
using ReducerActor = caf::typed_actor<caf::reacts_to<InstallPlan>, caf::replies_to<InstallCommunicator>::with<bool>,
                                      caf::reacts_to<BucketReady>>;

struct ReducerOptions {
  int rank = 0;
  std::shared_ptr<Communicator> communicator;
  caf::actor compute;  ///< gets BucketsReduced, CommunicatorFailed if the generation may be at fault, or RankFailed
  RankSupervisorActor supervisor;
  std::shared_ptr<StepProgress> progress;
  std::shared_ptr<FaultWatch> watch;  ///< of the rank's threads: for this one
};

struct ReducerState {
  ReducerActor::behavior_type make_behavior();
  void install(const InstallPlan& plan);
  void ready(const BucketReady& bucket);
  void launch(std::size_t index);
  const DeviceStream& stream();
  void fail(ErrorReport report);

  ReducerActor::pointer self = nullptr;
  ReducerOptions options;
  InstallPlan plan;
  std::vector<bool> arrived;
  std::vector<std::int64_t> sent_ns;  // of those that arrived
  std::size_t next = 0;
  std::int64_t step = -1;
  std::int64_t free_since_ns = 0;  // the last collective ended
  bool failed = false;
  std::optional<DeviceStream>
      own_stream;  // on a device: this thread's, so that a bucket delays neither forward nor backward of compute
  DeviceTimer timer;
  BucketsReduced result;
  static inline const char* name = "reducer";
};

ReducerActor::behavior_type reducer(ReducerActor::stateful_pointer<ReducerState> self, ReducerOptions options);

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::InstallPlan)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::InstallCommunicator)
