#include "tensor_io/communicator/collective_ledger.hpp"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <span>

#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/base/trace.hpp"
#include "tensor_io/files/xxh3.hpp"

namespace troupe {

std::string_view to_string(CollectiveKind kind) noexcept {
  static constexpr std::string_view names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                               "gather",     "scatter",        "all_to_all", "send",      "recv",
                                               "barrier",    "split",          "allocate"};
  return names[static_cast<std::size_t>(kind)];
}

std::string CollectiveRecord::describe() const {
  std::string text(to_string(kind));
  if (numel > 0 || dtype >= 0) {
    text += " of " + std::to_string(numel);
    if (dtype >= 0) text += std::string(" ") + c10::toString(static_cast<c10::ScalarType>(dtype));
  }
  if (peer >= 0)
    text += (kind == CollectiveKind::send   ? " to "
             : kind == CollectiveKind::recv ? " from "
                                            : " with root ") +
            std::to_string(peer);
  static constexpr std::string_view operations[] = {"",    "",    "avg",
                                                    "min", "max", "product"};  // by ReduceOp; sum goes without saying
  if (reduce_op > 1 && reduce_op < std::size(operations)) text += " by " + std::string(operations[reduce_op]);
  std::string where;
  if (label[0] != '\0') where = label.data();
  if (step >= 0) where += (where.empty() ? "step " : ", step ") + std::to_string(step);
  if (!where.empty()) text += " (" + where + ")";
  return text;
}

std::uint64_t CollectiveRecord::fingerprint() const noexcept {
  struct {
    std::uint64_t sequence, kind, reduce_op, dtype, peer, numel, step;
    std::array<char, 48> label;
  } told{};
  static_assert(sizeof told == 7 * 8 + 48, "padding would be hashed");
  const auto word = [](auto value) { return static_cast<std::uint64_t>(value); };
  told.sequence = point_to_point() ? 0 : sequence;  // the two ranks of a send may have talked to others in between
  told.kind = word(kind == CollectiveKind::recv ? CollectiveKind::send : kind);
  told.reduce_op = word(reduce_op);
  told.dtype = word(dtype);
  told.peer = point_to_point() ? 0 : word(peer);
  told.numel = word(numel);
  told.step = word(step);
  told.label = label;
  return xxh3(std::as_bytes(std::span(&told, 1)));
}

CollectiveRecord CollectiveLedger::begin(CollectiveRecord record) {
  record.step = step();
  if (record.started_ns == 0) record.started_ns = steady_now_ns();  // a simulator's clock is another one
  record.finished = false;
  std::lock_guard lock(mutex_);
  if (started_ > 0) ring_[(started_ - 1) % kCapacity].finished = ended_.load(std::memory_order_relaxed) == started_;
  record.sequence = record.point_to_point() ? ++point_to_point_ : ++collectives_;
  ++started_;
  if (ring_.size() < kCapacity) {
    ring_.push_back(record);
  } else {
    ring_[(started_ - 1) % kCapacity] = record;
  }
  return record;
}

namespace {

void trace_collective(TraceTrack& track, const CollectiveRecord& record, std::int64_t finished_ns) noexcept {
  TraceEvent event;
  event.kind = TraceEvent::Kind::collective;
  event.set_name(to_string(record.kind));
  event.set_detail(record.label.data());
  event.begin_ns = std::max(record.started_ns, track.began_ns());
  event.end_ns = finished_ns;
  event.numel = record.numel;
  event.dtype = record.dtype;
  event.step = record.step;
  track.add(event);
}

}  // namespace

void CollectiveLedger::finish() noexcept {
  const auto now = steady_now_ns();
  // Nobody else writes: neither a lock nor a locked instruction.
  const auto& record = ring_[(started_ - 1) % kCapacity];
  inside_ns_.store(inside_ns_.load(std::memory_order_relaxed) + now - record.started_ns, std::memory_order_relaxed);
  if (!record.point_to_point())
    finished_.store(finished_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  ended_.store(started_, std::memory_order_release);
  if (auto* track = active_track()) trace_collective(*track, record, now);
}

std::optional<CollectiveRecord> CollectiveLedger::in_flight() const {
  std::lock_guard lock(mutex_);
  if (started_ == 0) return std::nullopt;
  if (ended_.load(std::memory_order_acquire) == started_) return std::nullopt;
  return ring_[(started_ - 1) % kCapacity];
}

std::vector<CollectiveRecord> CollectiveLedger::snapshot() const {
  std::lock_guard lock(mutex_);
  std::vector<CollectiveRecord> records;
  records.reserve(ring_.size());
  const std::size_t first = started_ > kCapacity ? started_ % kCapacity : 0;
  for (std::size_t i = 0; i < ring_.size(); ++i) records.push_back(ring_[(first + i) % ring_.size()]);
  if (const bool over = ended_.load(std::memory_order_acquire) == started_; !records.empty())
    records.back().finished = over;
  return records;
}

}  // namespace troupe
