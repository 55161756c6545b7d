#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "strategies/sharded/sharded_parameters.hpp"
#include "tensor_io/device/device_timer.hpp"

namespace troupe {

/// Brings units' parameters together before they are needed, where ranks have no memory in common.
///
/// The problem: a gather is a collective, and what a rank needs next is decided by its forward, which may differ from
/// the others': another order, a unit that is not used, one that is called twice. Ranks that just gathered what they
/// need would wait for each other for ever. The solution: a thread with a communicator of its own, and two ways to go
/// on. What all ranks asked for in the last phase, in the same order, is the plan of this one: every rank goes through
/// all of it, ahead of what its forward needs, at its own pace. What is not in the plan is negotiated: a round in which
/// each rank says what it waits for, if anything, and all take part in gathering that. A phase (a step, an evaluation)
/// ends with rounds until no rank wants anything. None waits for a rank that only computes: in the plan it comes to
/// the same place, in the rounds its phase ends.
///
/// A rank that waits for others elsewhere, as one of a pipeline does for the stage before, neither computes nor takes
/// part in rounds, and another's want may be what all of them wait for. There (`for_phase`) nothing is negotiated: the
/// plan is all units, and no limit holds it up.
///
/// On a device the thread launches ahead, on a stream of its own, and nobody waits on the host but for the other ranks'
/// rounds: who needs a unit waits in the stream for the event of its gather, a gather for the events of those that used
/// its memory before, and, first in a phase, for the optimizer; the optimizer for the phase's last gather.
///
/// Compute's thread calls; the own thread gathers.
class UnitGathers {
 public:
  struct Options {
    std::int64_t prefetch = 2;                ///< units gathered ahead of what was asked for
    std::int64_t prefetch_bytes = 512 << 20;  ///< that these may take; one is always allowed
    std::chrono::milliseconds timeout{
        60'000};             ///< for a unit to come: longer than the communicator's, whose error says who is missing
    bool for_phase = false;  ///< all units come as a phase begins, asked for or not, and stay: `begin_phase`
  };
  struct Counts {
    std::int64_t gathers = 0;                 ///< of a unit
    std::int64_t rounds = 0;                  ///< of negotiation
    std::int64_t ahead = 0;                   ///< asked for when they were there already
    std::int64_t waited = 0;                  ///< asked for and waited for
    std::int64_t most_bytes = 0;              ///< of whole units at a time
    std::chrono::nanoseconds waited_time{0};  ///< by compute, for units that were not there
  };

  /// `communicator`: of the parameters' group, used by nothing else.
  UnitGathers(ShardedParameters& parameters, std::shared_ptr<Communicator> communicator, Options options);
  /// Gives up what is under way.
  ~UnitGathers();
  UnitGathers(const UnitGathers&) = delete;
  UnitGathers& operator=(const UnitGathers&) = delete;

  /// The unit's parameters are there when it returns. Where a lost rank broke the communicator they are zeros from then
  /// on, and end_phase throws why: the step is given up there, not inside the user's forward. Throws what can't be
  /// recovered.
  void need(std::int32_t unit);
  void release(std::int32_t unit);
  void release_all();
  /// With `for_phase`, before the first wait for anybody else.
  void begin_phase();
  /// The phase that begins is no step: all of it is negotiated, and the plan of steps stays.
  void begin_evaluation();
  /// Collective: all ranks are done with this phase. Units are released; what all asked for becomes the plan. Throws
  /// why the communicator broke.
  void end_phase();

  /// On a device: when compute's stream waited for units that were not there yet, since the last call.
  std::vector<TimedInterval> take_device_waits();

  Counts counts() const;
  /// Of units that are here, and of memory that is kept for the next ones.
  std::int64_t memory_bytes() const;
  std::vector<std::int32_t> plan() const;

 private:
  struct Memory {
    at::Tensor tensor;
    std::unique_ptr<DeviceEvent> free;  // after it nobody uses what it held before
  };
  struct Unit {
    explicit Unit(c10::Device device) : here(device) {}
    std::vector<std::size_t> flats;  // those that are gathered
    std::vector<Memory> memory;      // as flats, while gathered
    DeviceEvent here;                // after it the parameters are in `memory`
    std::int64_t bytes = 0;
    bool gathered = false;  // in `memory`, or will be when `here` is over; guarded by mutex_
    bool asked = false;     // compute has it: the parameters' storages point there
  };

  void run();
  bool can_work() const;
  void make_plan(bool all_alike);
  void round(std::unique_lock<std::mutex>& lock);
  /// Takes part in gathering it, and keeps it unless it is there. Returns whether it is now there without having been
  /// asked for.
  bool gather(std::int32_t unit, std::unique_lock<std::mutex>& lock);
  /// The first of a phase to come: what the masters hold now is what is gathered.
  void open();
  /// All of it has the value that is gathered: `memory`, (numel,), of the flat.
  void gather_flat(std::size_t flat, const at::Tensor& memory, const std::string& label);
  /// `user`: the stream that used it last.
  void free_memory(Unit& unit, const DeviceStream& user);
  Memory take_memory(std::size_t flat);
  void give_back(Memory memory, const DeviceStream& user);
  void wait(std::unique_lock<std::mutex>& lock, const char* what, const std::function<bool()>& ready);

  ShardedParameters& parameters_;
  std::shared_ptr<Communicator> communicator_;
  const Options options_;

  const DeviceStream stream_;          // the own thread's
  DeviceEvent updated_, last_gather_;  // in compute's stream, in the own

  mutable std::mutex mutex_;
  std::condition_variable work_, done_;
  std::vector<Unit> units_;
  std::vector<std::int32_t> plan_, asked_, steps_plan_;
  std::size_t position_ = 0;
  std::int32_t wanted_ = -1;  // compute waits for it
  std::int64_t ahead_ = 0, ahead_bytes_ = 0, bytes_ = 0;
  bool open_ = false, ending_ = false, ended_ = false, evaluation_ = false, stop_ = false;
  std::optional<ErrorReport> failure_;
  std::multimap<std::pair<std::int64_t, at::ScalarType>, Memory> pool_;
  Counts counts_;
  DeviceWaits waits_;
  std::thread thread_;
};

}  // namespace troupe
