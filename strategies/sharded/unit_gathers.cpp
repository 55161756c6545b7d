#include "strategies/sharded/unit_gathers.hpp"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "tensor_io/base/trace.hpp"
#include "tensor_io/files/xxh3.hpp"
#include "tensor_io/memory/failure_report.hpp"

namespace troupe {

UnitGathers::UnitGathers(ShardedParameters& parameters, std::shared_ptr<Communicator> communicator, Options options)
    : parameters_(parameters),
      communicator_(std::move(communicator)),
      options_(options),
      stream_(DeviceStream::from_pool(parameters.device(), true)),
      updated_(parameters.device()),
      last_gather_(parameters.device()) {
  for (std::size_t u = 0; u < parameters.plan().units.size(); ++u) units_.emplace_back(parameters.device());
  for (std::size_t f = 0; f < parameters_.flats().size(); ++f) {
    const auto& flat = parameters_.flats()[f];
    if (flat.residence != Residence::gathered) continue;
    auto& unit = units_[static_cast<std::size_t>(flat.plan->unit)];
    unit.flats.push_back(f);
    unit.bytes += flat.plan->numel * static_cast<std::int64_t>(flat.whole.element_size());
  }
  make_plan(false);
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
    under_way = open_ || ending_;
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
  if (!open_ && !ending_) return false;
  if (ending_ && ended_) return false;
  if (ending_ || wanted_ >= 0) return true;
  if (position_ >= plan_.size()) return false;
  if (options_.for_phase) return true;
  const auto& next = units_[static_cast<std::size_t>(plan_[position_])];
  if (next.gathered) return false;  // in use now, and needed again once it was released
  return ahead_ < options_.prefetch && (ahead_ == 0 || ahead_bytes_ + next.bytes <= options_.prefetch_bytes);
}

void UnitGathers::run() {
  const CurrentStream place(stream_);
  std::unique_lock lock(mutex_);
  try {
    for (;;) {
      work_.wait(lock, [this] { return stop_ || can_work(); });
      if (stop_) return;
      position_ < plan_.size() ? (void)gather(plan_[position_++], lock) : round(lock);
    }
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    failure_ = failure_report(error, parameters_.device(),
                              {.code = ErrorCode::internal, .actor = "gathers", .operation = "gather"});
  }
  done_.notify_all();
}

UnitGathers::Memory UnitGathers::take_memory(std::size_t f) {
  const auto& flat = parameters_.flats()[f];
  const auto found = pool_.find({flat.plan->numel, flat.whole.scalar_type()});
  if (found != pool_.end()) {
    auto memory = std::move(found->second);
    pool_.erase(found);
    return memory;
  }
  const CurrentStream place(stream_);
  return {at::empty({flat.plan->numel}, flat.whole.options()), std::make_unique<DeviceEvent>(parameters_.device())};
}

void UnitGathers::give_back(Memory memory, const DeviceStream& user) {
  memory.free->record(user);
  const std::pair key(memory.tensor.numel(), memory.tensor.scalar_type());
  pool_.emplace(key, std::move(memory));
}

void UnitGathers::free_memory(Unit& unit, const DeviceStream& user) {
  if (!unit.gathered) return;
  for (auto& memory : unit.memory) give_back(std::move(memory), user);
  unit.memory.clear();
  unit.gathered = false;
  bytes_ -= unit.bytes;
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
  std::vector<Memory> memory;
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
  for (auto& rest : memory) give_back(std::move(rest), stream_);
  if (is_spare) return false;
  unit.gathered = true;
  bytes_ += unit.bytes;
  counts_.most_bytes = std::max(counts_.most_bytes, bytes_);
  if (wanted_ == index) {
    wanted_ = -1;
    done_.notify_all();
    return false;
  }
  ++ahead_;
  ahead_bytes_ += unit.bytes;
  return true;
}

void UnitGathers::round(std::unique_lock<std::mutex>& lock) {
  const auto asked = static_cast<std::int64_t>(xxh3(std::as_bytes(std::span(asked_))));
  const auto mine = at::tensor(std::vector<std::int64_t>{wanted_, ending_ ? 1 : 0, asked}, at::kLong);
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
    --ahead_;
    ahead_bytes_ -= gathered.bytes;
    free_memory(gathered, stream_);
  }
  if (!all_end || !wanted.empty()) return;
  make_plan(all_alike && !evaluation_);
  ended_ = true;
  done_.notify_all();
}

// Of the next phase: what was asked for in this one, where all ranks did so in the same order.
void UnitGathers::make_plan(bool all_alike) {
  if (all_alike) {
    plan_ = asked_;
  } else if (!options_.for_phase) {
    plan_.clear();
  }
  if (!options_.for_phase) return;
  std::set<std::int32_t> planned;
  std::erase_if(plan_, [&](std::int32_t unit) { return !planned.insert(unit).second; });
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const auto unit = static_cast<std::int32_t>(u);
    if (!units_[u].flats.empty() && planned.insert(unit).second) plan_.push_back(unit);
  }
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
  if (open_) return;
  open_ = true;
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
  asked_.push_back(index);
  if (!failure_ && unit.gathered) {
    --ahead_;
    ahead_bytes_ -= unit.bytes;
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
    bytes_ += unit.bytes;
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
    if (open_) return;  // forward ran since the last phase: its plan is under way
    evaluation_ = true;
    if (!options_.for_phase) steps_plan_.swap(plan_);
  }
  if (options_.for_phase) begin_phase();
}

void UnitGathers::end_phase() {
  release_all();
  std::unique_lock lock(mutex_);
  if (failure_) throw Error(*failure_);
  open();
  ending_ = true;
  ended_ = false;
  wait(lock, "end of the units' gathers", [&] { return ended_; });
  for (auto& unit : units_) free_memory(unit, stream_);
  last_gather_.record(stream_);
  DeviceStream::current(parameters_.device()).wait(last_gather_);
  ending_ = ended_ = open_ = false;
  if (evaluation_ && !options_.for_phase) plan_.swap(steps_plan_);
  evaluation_ = false;
  asked_.clear();
  position_ = 0;
  ahead_ = ahead_bytes_ = 0;
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
  std::int64_t bytes = bytes_;
  for (const auto& [key, memory] : pool_) bytes += static_cast<std::int64_t>(memory.tensor.nbytes());
  return bytes;
}

std::vector<std::int32_t> UnitGathers::plan() const {
  std::lock_guard lock(mutex_);
  return plan_;
}

}  // namespace troupe
