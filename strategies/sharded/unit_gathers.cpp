#include "strategies/sharded/unit_gathers.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "tensor_io/base/trace.hpp"
#include "tensor_io/memory/failure_report.hpp"

namespace troupe {
namespace {

// With `for_phase` all that have something to gather.
GatherPlan::Units units_of_each_phase(const ShardedParameters& parameters, bool for_phase) {
  std::set<std::int32_t> units;
  for (const auto& flat : parameters.flats()) {
    if (for_phase && flat.residence == Residence::gathered) units.insert(flat.plan->unit);
  }
  return {units.begin(), units.end()};
}

}  // namespace

UnitGathers::UnitGathers(ShardedParameters& parameters, std::shared_ptr<Communicator> communicator, Options options)
    : parameters_(parameters),
      communicator_(std::move(communicator)),
      options_(options),
      stream_(DeviceStream::from_pool(parameters.device(), true)),
      updated_(parameters.device()),
      last_gather_(parameters.device()),
      plan_(units_of_each_phase(parameters, options.for_phase)) {
  for (std::size_t u = 0; u < parameters.plan().units.size(); ++u) units_.emplace_back(parameters.device());
  for (std::size_t f = 0; f < parameters_.flats().size(); ++f) {
    const auto& flat = parameters_.flats()[f];
    if (flat.residence != Residence::gathered) continue;
    auto& unit = units_[static_cast<std::size_t>(flat.plan->unit)];
    unit.flats.push_back(f);
    unit.bytes += flat.plan->numel * static_cast<std::int64_t>(flat.whole.element_size());
  }
  thread_ = std::thread([this, trace = trace_recorder()] {
    join_trace(trace, "gathers");
    run();
  });
}

UnitGathers::~UnitGathers() {
  bool under_way = false;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    under_way = phase_ != Phase::closed;
  }
  work_.notify_all();
  if (under_way) communicator_->abort({ErrorCode::aborted, -1, {}, -1, {}, "the rank gave up its model", {}});
  thread_.join();
  try {  // its memory was allocated for the own stream: who gets it there comes after compute
    updated_.record(DeviceStream::current(parameters_.device()));
    stream_.wait(updated_);
  } catch (const c10::Error&) {  // the device has failed: nothing runs there any more
  }
}

bool UnitGathers::can_work() const {
  if (phase_ == Phase::closed || phase_ == Phase::ended) return false;
  if (phase_ == Phase::ending || wanted_ >= 0) return true;
  if (plan_.at_end()) return false;
  if (options_.for_phase) return true;
  const auto& next = units_[static_cast<std::size_t>(plan_.next())];
  if (next.gathered) return false;  // in use now, and needed again once it was released
  return ahead_.units < options_.prefetch &&
         (ahead_.units == 0 || ahead_.bytes + next.bytes <= options_.prefetch_bytes);
}

void UnitGathers::run() {
  const CurrentStream place(stream_);
  std::unique_lock lock(mutex_);
  try {
    for (;;) {
      work_.wait(lock, [this] { return stop_ || can_work(); });
      if (stop_) return;
      plan_.at_end() ? round(lock) : (void)gather(plan_.take(), lock);
    }
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    failure_ = failure_report(error, parameters_.device(),
                              {.code = ErrorCode::internal, .actor = "gathers", .operation = "gather"});
  }
  done_.notify_all();
}

GatherMemory::Piece UnitGathers::take_memory(std::size_t f) {
  const auto& flat = parameters_.flats()[f];
  return memory_.take(flat.plan->numel, flat.whole.options());
}

void UnitGathers::free_memory(Unit& unit, const DeviceStream& user) {
  if (!unit.gathered) return;
  for (auto& memory : unit.memory) memory_.give_back(std::move(memory), user);
  unit.memory.clear();
  unit.gathered = false;
}

void UnitGathers::gather_flat(std::size_t f, const at::Tensor& memory, const std::string& label) {
  const auto& flat = parameters_.flats()[f];
  if (memory.is_cpu() && flat.master.scalar_type() == memory.scalar_type())
    return communicator_->all_gather(memory, flat.master, label);
  const auto own = memory.narrow(0, communicator_->rank() * flat.plan->shard_numel, flat.plan->shard_numel);
  own.copy_(flat.master, /*non_blocking=*/true);  // in place: no memory but this
  communicator_->all_gather(memory, own, label);
}

bool UnitGathers::gather(std::int32_t index, std::unique_lock<std::mutex>& lock) {
  auto& unit = units_[static_cast<std::size_t>(index)];
  std::vector<GatherMemory::Piece> memory;
  for (const auto f : unit.flats) {
    memory.push_back(take_memory(f));
    stream_.wait(*memory.back().free);
  }
  ++counts_.gathers;
  lock.unlock();
  for (std::size_t i = 0; i < unit.flats.size(); ++i)
    gather_flat(unit.flats[i], memory[i].tensor, "unit " + std::to_string(index));
  lock.lock();
  const bool is_spare = unit.gathered;
  if (!is_spare) {
    unit.memory.swap(memory);
    unit.here.record(stream_);
  }
  for (auto& rest : memory) memory_.give_back(std::move(rest), stream_);
  if (is_spare) return false;
  unit.gathered = true;
  counts_.most_bytes = std::max(counts_.most_bytes, memory_.bytes_in_use());
  if (wanted_ == index) {
    wanted_ = -1;
    done_.notify_all();
    return false;
  }
  ahead_.add(unit);
  return true;
}

void UnitGathers::round(std::unique_lock<std::mutex>& lock) {
  const auto mine = at::tensor(
      std::vector<std::int64_t>{wanted_, phase_ == Phase::ending ? 1 : 0, plan_.hash_of_requests()}, at::kLong);
  auto all = at::empty({3 * communicator_->world_size()}, at::kLong);
  ++counts_.rounds;
  lock.unlock();
  communicator_->all_gather(all, mine, "wanted units");
  lock.lock();
  const auto* said = all.const_data_ptr<std::int64_t>();
  std::set<std::int32_t> wanted;
  bool all_end = true, all_alike = true;
  for (int r = 0; r < communicator_->world_size(); ++r) {
    if (said[3 * r] >= 0) wanted.insert(static_cast<std::int32_t>(said[3 * r]));
    all_end = all_end && said[3 * r + 1] == 1;
    all_alike = all_alike && said[3 * r + 2] == said[2];
  }
  for (const auto unit : wanted) {
    // Compute may have asked for it meanwhile; what it did not ask for would only take room.
    if (!gather(unit, lock)) continue;
    auto& gathered = units_[static_cast<std::size_t>(unit)];
    ahead_.remove(gathered);
    free_memory(gathered, stream_);
  }
  if (!all_end || !wanted.empty()) return;
  plan_.end_phase(all_alike);
  phase_ = Phase::ended;
  done_.notify_all();
}

void UnitGathers::wait(std::unique_lock<std::mutex>& lock, const char* what, const std::function<bool()>& ready) {
  const TraceSpan span(what, TraceEvent::Kind::wait);
  work_.notify_all();
  const bool came = done_.wait_for(lock, options_.timeout, [&] { return failure_ || ready(); });
  if (failure_) throw Error(*failure_);
  if (!came) {
    throw Error(ErrorReport{ErrorCode::timeout, -1, "compute", -1, what,
                            "the other ranks did not arrive within " + std::to_string(options_.timeout.count()) + " ms",
                            "every rank must run forward, and evaluate, as often as the others"});
  }
}

void UnitGathers::open() {
  if (phase_ != Phase::closed) return;
  phase_ = Phase::open;
  updated_.record(DeviceStream::current(parameters_.device()));
  stream_.wait(updated_);
}

void UnitGathers::need(std::int32_t index) {
  auto& unit = units_[static_cast<std::size_t>(index)];
  if (unit.asked || unit.flats.empty()) return;
  const auto compute = DeviceStream::current(parameters_.device());
  std::unique_lock lock(mutex_);
  auto arrived = waits_.arrive(compute);
  open();
  plan_.request(index);
  if (!failure_ && unit.gathered) {
    ahead_.remove(unit);
    ++counts_.ahead;
  } else if (!failure_) {
    wanted_ = index;
    ++counts_.waited;
    const auto began = std::chrono::steady_clock::now();
    try {
      wait(lock, "gather of a unit", [&] { return unit.gathered; });
    } catch (const Error& error) {
      failure_ = error.report();
    }
    counts_.waited_time += std::chrono::steady_clock::now() - began;
  }
  if (failure_ && !may_be_recovered(failure_->code)) throw Error(*failure_);
  if (failure_ && !unit.gathered) {
    for (const auto f : unit.flats) {
      auto& memory = unit.memory.emplace_back(take_memory(f));
      memory.free->record(stream_);
      compute.wait(*memory.free);
      memory.tensor.zero_();
    }
    unit.gathered = true;
  }
  unit.asked = true;
  compute.wait(unit.here);
  waits_.leave(std::move(arrived), compute);
  for (std::size_t i = 0; i < unit.flats.size(); ++i) parameters_.put(unit.flats[i], unit.memory[i].tensor);
  work_.notify_all();
}

void UnitGathers::release(std::int32_t index) {
  auto& unit = units_[static_cast<std::size_t>(index)];
  if (!unit.asked) return;
  unit.asked = false;
  for (const auto f : unit.flats) parameters_.take_away(f);
  {
    std::lock_guard lock(mutex_);
    free_memory(unit, DeviceStream::current(parameters_.device()));
  }
  work_.notify_all();
}

void UnitGathers::release_all() {
  for (std::size_t u = 0; u < units_.size(); ++u) release(static_cast<std::int32_t>(u));
}

void UnitGathers::begin_phase() {
  std::lock_guard lock(mutex_);
  open();
  work_.notify_all();
}

void UnitGathers::begin_evaluation() {
  {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::closed) return;  // forward ran since the last phase: its plan is under way
    plan_.begin_evaluation();
  }
  if (options_.for_phase) begin_phase();
}

void UnitGathers::end_phase() {
  release_all();
  std::unique_lock lock(mutex_);
  if (failure_) throw Error(*failure_);
  open();
  phase_ = Phase::ending;
  wait(lock, "end of the units' gathers", [&] { return phase_ == Phase::ended; });
  for (auto& unit : units_) free_memory(unit, stream_);
  last_gather_.record(stream_);
  DeviceStream::current(parameters_.device()).wait(last_gather_);
  phase_ = Phase::closed;
  ahead_ = {};
}

std::vector<TimedInterval> UnitGathers::take_device_waits() {
  std::lock_guard lock(mutex_);
  return waits_.take();
}

UnitGathers::Counts UnitGathers::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

std::int64_t UnitGathers::memory_bytes() const {
  std::lock_guard lock(mutex_);
  return memory_.bytes();
}

std::vector<std::int32_t> UnitGathers::plan() const {
  std::lock_guard lock(mutex_);
  return plan_.units();
}

}  // namespace troupe
