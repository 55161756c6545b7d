#include "tensor_io/communicator/shm/shm_group.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <thread>

#include "tensor_io/communicator/communicator_errors.hpp"
#include "tensor_io/communicator/shm/gone_ranks.hpp"
#include "tensor_io/kernels/reduce_kernels.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kSlice = 100ms;  // between two looks at whether who is missing still lives
constexpr auto kSpin = 30us;

void pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Not FUTEX_PRIVATE: the waiters are in other processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds timeout) noexcept {
  const timespec time{static_cast<time_t>(timeout.count() / 1'000'000'000),
                      static_cast<long>(timeout.count() % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void ring(shm::Bell& bell) noexcept {
  bell.count.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &bell.count, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void copy_text(char* to, std::size_t capacity, const std::string& text) noexcept {
  const std::size_t length = std::min(capacity - 1, text.size());
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

// Below this an ordinary copy, which stays in the cache, reaches the reader sooner.
constexpr std::int64_t kStreamBytes = 8 * 1024;

}  // namespace

void stage(void* to, const void* from, std::int64_t bytes) noexcept {
  if (bytes >= kStreamBytes) {
    copy_streaming(to, from, bytes);
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

ShmGroup::ShmGroup(const CommunicatorOptions& options, std::shared_ptr<SharedSegment> segment,
                   std::vector<ProcessWatch> watches)
    : options_(options),
      rank_(options.rank),
      world_size_(options.world_size),
      crowded_(static_cast<unsigned>(options.ranks_on_host) > std::max(1u, std::thread::hardware_concurrency())),
      segment_(std::move(segment)),
      watches_(std::move(watches)) {}

ShmGroup::~ShmGroup() {
  slot(rank_).left.store(1, std::memory_order_release);
  ring(header().bell);
  for (int r = 0; r < world_size_; ++r) {
    ring(channel(rank_, r).bell);
    ring(channel(r, rank_).bell);
  }
}

std::string ShmGroup::names(const std::vector<int>& ranks) const { return name_ranks(options_, ranks); }

void ShmGroup::throw_if_failed() const {
  auto& failure = header().failure;
  if (failure.state.load(std::memory_order_acquire) == 0) return;
  const auto deadline = Clock::now() + 10ms;
  while (failure.state.load(std::memory_order_acquire) != 2) {
    if (Clock::now() > deadline)
      throw Error(ErrorCode::aborted, {}, "another rank failed, and died while it wrote the reason");
    std::this_thread::yield();
  }
  throw Error(static_cast<ErrorCode>(failure.code), {}, failure.cause, failure.remedy);
}

void ShmGroup::abort(const ErrorReport& reason) noexcept {
  auto& failure = header().failure;
  std::uint32_t none = 0;
  if (failure.state.compare_exchange_strong(none, 1)) {
    failure.code = static_cast<std::uint8_t>(reason.code);
    copy_text(failure.cause, sizeof failure.cause, reason.cause);
    copy_text(failure.remedy, sizeof failure.remedy, reason.remedy);
    failure.state.store(2, std::memory_order_release);
  }
  ring(header().bell);
  for (int from = 0; from < world_size_; ++from) {
    for (int to = 0; to < world_size_; ++to) ring(channel(from, to).bell);
  }
}

void ShmGroup::throw_if_any(const std::vector<int>& gone) const {
  std::vector<int> dead, left;
  for (const int r : gone) (watches_[r].alive() ? left : dead).push_back(r);
  if (!dead.empty()) {
    std::string pids;
    for (const int r : dead) pids += (pids.empty() ? "" : ", ") + std::to_string(watches_[r].pid());
    throw Error(ErrorCode::peer_lost, {}, names(dead) + " died (process " + pids + " ended)",
                "see its log for the reason");
  }
  if (!left.empty()) {
    throw Error(ErrorCode::peer_lost, {},
                names(left) + " left the group '" + options_.name + "' while others still waited for it",
                "every rank must make the same calls before it destroys its communicator");
  }
}

// Spins, then sleeps in slices. `ready` says whether to go on, `missing` who keeps this rank waiting.
template <class Ready, class Missing>
void ShmGroup::wait(shm::Bell& bell, Ready ready, Missing missing) {
  const auto look = [&] {
    // With more ranks than cores whoever spins keeps the one it waits for from running.
    for (int i = 0; i < (crowded_ ? 1 : 32); ++i) {
      crowded_ ? std::this_thread::yield() : pause();
      if (ready()) return true;
    }
    return false;
  };
  if (ready() || look()) return;  // before the clock, which takes as long as a rank that is about to come
  const auto start = Clock::now();
  while (Clock::now() - start < kSpin) {
    if (look()) return;
  }
  const auto deadline = start + options_.timeout;
  for (;;) {
    bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const auto seen = bell.count.load(std::memory_order_seq_cst);
    // From here on whoever changes something sees the sleeper, and the bell's count differs from `seen`.
    if (!ready() && header().failure.state.load() == 0) {
      const std::chrono::nanoseconds left = deadline - Clock::now();
      if (left.count() > 0) futex_wait(bell.count, seen, std::min<std::chrono::nanoseconds>(left, kSlice));
    }
    bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (ready()) return;
    throw_if_failed();
    throw_if_any(gone_ranks(
        missing, [&](int r) { return !watches_[r].alive() || slot(r).left.load(std::memory_order_acquire) != 0; }));
    const std::vector<int> absent = missing();
    if (absent.empty()) return;
    if (Clock::now() >= deadline) {
      throw Error(ErrorCode::timeout, {},
                  names(absent) + " did not arrive within " + std::to_string(options_.timeout.count()) + " ms",
                  "a rank may hang or have taken another branch; raise collective_timeout if it is only slow");
    }
  }
}

bool ShmGroup::all_came() const noexcept {
  for (int r = 0; r < world_size_; ++r) {
    if (!came(r, meeting_)) return false;
  }
  return true;
}

void ShmGroup::arrive() {
  ++meeting_;
  slot(rank_).meeting.store(meeting_, std::memory_order_seq_cst);
  // Only the last one to come wakes the sleepers: with more ranks than cores every needless wake-up is a switch of
  // threads.
  auto& bell = header().bell;
  if (bell.sleepers.load(std::memory_order_seq_cst) > 0 && all_came()) ring(bell);
}

void ShmGroup::wait_for_all() {
  int next = 0;
  wait(
      header().bell,
      [&] {
        while (next < world_size_ && came(next, meeting_)) ++next;
        return next == world_size_;
      },
      [&] {
        std::vector<int> missing;
        for (int r = 0; r < world_size_; ++r) {
          if (!came(r, meeting_)) missing.push_back(r);
        }
        return missing;
      });
}

void ShmGroup::check_agreement(const CollectiveRecord& record, std::uint64_t fingerprint) const {
  const unsigned parity = meeting_ & 1;
  bool agreed = true;
  for (int r = 0; r < world_size_; ++r) agreed &= slot(r).fingerprint[parity] == fingerprint;
  if (agreed) return;
  std::vector<int> ranks;
  std::vector<CollectiveRecord> records;
  for (int r = 0; r < world_size_; ++r) {
    ranks.push_back(r);
    records.push_back(r == rank_ ? record : slot(r).records[parity]);
  }
  throw Error(mismatch_report(options_, ranks, records));
}

void ShmGroup::meet(const CollectiveRecord& record, std::int64_t word0, std::int64_t word1) {
  auto& own = slot(rank_);
  const unsigned parity = (meeting_ + 1) & 1;
  const std::uint64_t fingerprint = record.fingerprint();
  own.fingerprint[parity] = fingerprint;
  own.words[parity][0] = word0;
  own.words[parity][1] = word1;
  own.records[parity] = record;
  throw_if_failed();
  arrive();
  wait_for_all();
  check_agreement(record, fingerprint);
}

void ShmGroup::meet_again() {
  arrive();
  wait_for_all();
}

void ShmGroup::send(const std::byte* data, std::int64_t bytes, int destination, const CollectiveRecord& record) {
  auto& way = channel(rank_, destination);
  const auto announce = [&way] {
    way.sent.fetch_add(1, std::memory_order_seq_cst);
    if (way.bell.sleepers.load(std::memory_order_seq_cst) > 0) ring(way.bell);
  };
  const auto wait_until_taken = [&](std::uint32_t but) {
    const auto is_taken = [&] {
      return way.sent.load(std::memory_order_relaxed) - way.taken.load(std::memory_order_seq_cst) <= but;
    };
    wait(way.bell, is_taken, [&] { return is_taken() ? std::vector<int>() : std::vector<int>{destination}; });
  };
  throw_if_failed();
  way.fingerprint = record.fingerprint();
  way.record = record;
  std::int64_t done = 0;
  do {
    const auto count = std::min<std::int64_t>(bytes - done, shm::kParcelBytes);
    wait_until_taken(1);
    auto* box = parcel(rank_, way.sent.load(std::memory_order_relaxed) & 1);
    stage(box, data + done, count);
    announce();
    done += count;
  } while (done < bytes);
  wait_until_taken(0);
}

void ShmGroup::recv(std::byte* data, std::int64_t bytes, int source, const CollectiveRecord& record) {
  auto& way = channel(source, rank_);
  throw_if_failed();
  std::int64_t done = 0;
  do {
    const auto count = std::min<std::int64_t>(bytes - done, shm::kParcelBytes);
    const auto taken = way.taken.load(std::memory_order_relaxed);
    const auto is_sent = [&] { return way.sent.load(std::memory_order_seq_cst) != taken; };
    wait(way.bell, is_sent, [&] { return is_sent() ? std::vector<int>() : std::vector<int>{source}; });
    if (done == 0 && way.fingerprint != record.fingerprint()) {
      throw Error(
          ErrorCode::mismatch, {},
          names({source}) + " is at " + way.record.describe() + ", " + names({rank_}) + " is at " + record.describe(),
          "every send needs the recv of the same tensor");
    }
    if (count > 0) std::memcpy(data + done, parcel(source, taken & 1), count);
    way.taken.store(taken + 1, std::memory_order_seq_cst);
    if (way.bell.sleepers.load(std::memory_order_seq_cst) > 0) ring(way.bell);
    done += count;
  } while (done < bytes);
}

}  // namespace troupe
