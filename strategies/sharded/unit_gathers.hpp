#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "strategies/sharded/gather_memory.hpp"
#include "strategies/sharded/gather_plan.hpp"
#include "strategies/sharded/sharded_parameters.hpp"
#include "tensor_io/device/device_timer.hpp"

namespace troupe {

/// Gathers units' parameters before they are needed, if ranks have no memory in common.
///
/// The problem: a gather is a collective, and a rank's forward decides on its next one. That may differ from the
/// others': another order, a unit that is not used, one that is called twice. If ranks gathered only what they need
/// now, they would wait for each other for ever. The solution: a thread with its own communicator, and two ways to go
/// on. The gathers that all ranks asked for in the last phase, in the same order, are the plan of this one. Every rank
/// goes through all of it, ahead of its forward, at its own pace. Other gathers are negotiated in rounds: each rank
/// says which unit it waits for, if any, and all take part in gathering it. A phase (a step, an evaluation) ends with
/// rounds until no rank wants anything. No rank waits for one that only computes: that rank comes to the same place of
/// the plan, or its phase ends.
///
/// A rank that waits for others elsewhere, as one of a pipeline does for the stage before, neither computes nor takes
/// part in rounds. And all of them may wait for the unit that another rank wants. So with `for_phase` nothing is
/// negotiated: the plan is all units, and no limit holds it up.
///
/// On a device the thread launches ahead, on its own stream, and the host waits only for the other ranks' rounds. A
/// unit's user waits in the stream for the event of its gather. A gather waits for the last users of its memory, and
/// the first of a phase for the optimizer. The optimizer waits for the phase's last gather.
///
/// Compute's thread calls; the gathers run on the own thread.
class UnitGathers {
 public:
  struct Options {
    std::int64_t prefetch = 2;                ///< units gathered ahead of the last request
    std::int64_t prefetch_bytes = 512 << 20;  ///< that these may take; one is always allowed
    std::chrono::milliseconds timeout{
        60'000};             ///< for a unit to come: longer than the communicator's, whose error names the missing rank
    bool for_phase = false;  ///< all units come as a phase begins, requested or not, and stay: `begin_phase`
  };
  struct Counts {
    std::int64_t gathers = 0;                 ///< of a unit
    std::int64_t rounds = 0;                  ///< of negotiation
    std::int64_t ahead = 0;                   ///< units that were there already when requested
    std::int64_t waited = 0;                  ///< units that compute waited for
    std::int64_t most_bytes = 0;              ///< of whole units at a time
    std::chrono::nanoseconds waited_time{0};  ///< by compute, for units that were not there
  };

  /// `communicator`: of the parameters' group, used by nothing else.
  UnitGathers(ShardedParameters& parameters, std::shared_ptr<Communicator> communicator, Options options);
  /// Gives up gathers under way.
  ~UnitGathers();
  UnitGathers(const UnitGathers&) = delete;
  UnitGathers& operator=(const UnitGathers&) = delete;

  /// The unit's parameters are there when it returns. If a lost rank broke the communicator they are zeros from then
  /// on, and end_phase throws the reason: so the step is given up there, not inside the user's forward. Throws errors
  /// that are not recoverable.
  void need(std::int32_t unit);
  void release(std::int32_t unit);
  void release_all();
  /// With `for_phase`, before the first wait for another rank.
  void begin_phase();
  /// The phase that begins is no step: all of it is negotiated, and the plan of steps stays.
  void begin_evaluation();
  /// Collective: all ranks are done with this phase. Units are released; the common requests become the plan. Throws
  /// the reason if the communicator broke.
  void end_phase();

  /// On a device: the waits of compute's stream for units that were not there yet, since the last call.
  std::vector<TimedInterval> take_device_waits();

  Counts counts() const;
  /// Of units that are here, and of memory kept for the next ones.
  std::int64_t memory_bytes() const;
  std::vector<std::int32_t> plan() const;

 private:
  enum class Phase { closed, open, ending, ended };  // closed: between two phases; ended: on all ranks
  struct Unit {
    explicit Unit(c10::Device device) : here(device) {}
    std::vector<std::size_t> flats;           // those that are gathered
    std::vector<GatherMemory::Piece> memory;  // as flats, while gathered
    DeviceEvent here;                         // after it the parameters are in `memory`
    std::int64_t bytes = 0;
    bool gathered = false;  // in `memory`, or will be when `here` is over; guarded by mutex_
    bool asked = false;     // compute has it: the parameters' storages point there
  };
  struct Ahead {  // units that were gathered and not requested yet
    std::int64_t units = 0, bytes = 0;
    void add(const Unit& unit) { ++units, bytes += unit.bytes; }
    void remove(const Unit& unit) { --units, bytes -= unit.bytes; }
  };

  void run();
  bool can_work() const;
  void round(std::unique_lock<std::mutex>& lock);
  /// Takes part in gathering it, and keeps it unless it is there. Returns whether it is now there without a
  /// request.
  bool gather(std::int32_t unit, std::unique_lock<std::mutex>& lock);
  /// Called first in a phase: gathers take the present values of the masters.
  void open();
  /// Puts all of the flat's value into `memory`, (numel,).
  void gather_flat(std::size_t flat, const at::Tensor& memory, const std::string& label);
  /// `user`: the last stream that used it.
  void free_memory(Unit& unit, const DeviceStream& user);
  GatherMemory::Piece take_memory(std::size_t flat);
  void wait(std::unique_lock<std::mutex>& lock, const char* what, const std::function<bool()>& ready);

  ShardedParameters& parameters_;
  std::shared_ptr<Communicator> communicator_;
  const Options options_;

  const DeviceStream stream_;          // the own thread's
  DeviceEvent updated_, last_gather_;  // in compute's stream, in the own one

  mutable std::mutex mutex_;
  std::condition_variable work_, done_;
  std::vector<Unit> units_;
  GatherPlan plan_;
  std::int32_t wanted_ = -1;  // compute waits for it
  Ahead ahead_;
  GatherMemory memory_{stream_};
  Phase phase_ = Phase::closed;
  bool stop_ = false;
  std::optional<ErrorReport> failure_;
  Counts counts_;
  DeviceWaits waits_;
  std::thread thread_;
};

}  // namespace troupe
