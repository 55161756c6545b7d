#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/communicator/shm/process_watch.hpp"
#include "tensor_io/communicator/shm/shm_layout.hpp"
#include "tensor_io/memory/shared_segment.hpp"

namespace troupe {

/// The error that keeps `call` from succeeding; empty if there is none.
template <class Call>
std::string problem_of(Call&& call) {
  try {
    call();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// Into memory that another core read before.
void stage(void* to, const void* from, std::int64_t bytes) noexcept;

/// Ranks of one host that meet in shared memory. The problem: ranks wait for each other a few times per operation. That
/// should take a few hundred nanoseconds if all are there, and burn no core if one is late. And a wait must end if a
/// rank is dead, does something else, or was stopped. The solution: each rank counts its meetings in its own cache
/// line. A waiter looks at these for some microseconds, giving its core away between two looks if the host's ranks
/// outnumber its cores. Then it sleeps on a futex, and looks every 100 ms whether the missing ranks still live. One
/// thread; `abort` and `failure` any thread.
class ShmGroup {
 public:
  /// Collective. nullptr, on all ranks alike, if a rank can't map the memory; `why_not` then names it and the reason.
  static std::unique_ptr<ShmGroup> join(const CommunicatorOptions& options, std::string* why_not);
  ~ShmGroup();

  /// Comes to the next meeting and waits for all others. With a `record`, it is the first of an operation: the ranks'
  /// operations are compared before any data moves. `words` are shown to the others (peer_words).
  void meet(const CollectiveRecord& record, std::int64_t word0, std::int64_t word1);
  /// A later meeting of the same operation.
  void meet_again();

  /// This rank's place for data of the next meeting, kOutboxBytes.
  std::byte* outbox() const noexcept { return box(rank_, (meeting_ + 1) & 1); }
  /// The data that `rank` put there for the last meeting. It stays until this rank comes to the next but one.
  std::byte* inbox(int rank) const noexcept { return box(rank, meeting_ & 1); }
  /// The two words of `rank`, until this rank comes to the next meeting but one.
  const std::int64_t* peer_words(int rank) const noexcept { return slot(rank).words[meeting_ & 1]; }

  void send(const std::byte* data, std::int64_t bytes, int destination, const CollectiveRecord& record);
  void recv(std::byte* data, std::int64_t bytes, int source, const CollectiveRecord& record);

  void abort(const ErrorReport& reason) noexcept;
  /// The process of rank `rank`.
  pid_t pid(int rank) const noexcept { return watches_[rank].pid(); }

 private:
  ShmGroup(const CommunicatorOptions& options, std::shared_ptr<SharedSegment> segment,
           std::vector<ProcessWatch> watches);

  template <class T>
  T* at(std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(segment_->data() + offset);
  }
  shm::Header& header() const noexcept { return *at<shm::Header>(0); }
  shm::Slot& slot(int rank) const noexcept { return at<shm::Slot>(shm::slots_offset())[rank]; }
  shm::Channel& channel(int from, int to) const noexcept {
    return at<shm::Channel>(shm::channels_offset(world_size_))[from * world_size_ + to];
  }
  std::byte* box(int rank, unsigned parity) const noexcept {
    return at<std::byte>(shm::outboxes_offset(world_size_) + (2 * rank + parity) * shm::kOutboxBytes);
  }
  std::byte* parcel(int rank, unsigned parity) const noexcept {
    return at<std::byte>(shm::parcels_offset(world_size_) + (2 * rank + parity) * shm::kParcelBytes);
  }

  void arrive();
  bool came(int rank, std::uint32_t meeting) const noexcept {
    return static_cast<std::int32_t>(slot(rank).meeting.load(std::memory_order_seq_cst) - meeting) >= 0;
  }
  bool all_came() const noexcept;
  void wait_for_all();
  void check_agreement(const CollectiveRecord& record, std::uint64_t fingerprint) const;
  template <class Ready, class Missing>
  void wait(shm::Bell& bell, Ready ready, Missing missing);
  void throw_if_any(const std::vector<int>& gone) const;
  void throw_if_failed() const;
  std::string names(const std::vector<int>& ranks) const;

  const CommunicatorOptions options_;
  const int rank_;
  const int world_size_;
  const bool crowded_;  // more ranks on the host than cores
  std::shared_ptr<SharedSegment> segment_;
  std::vector<ProcessWatch> watches_;
  std::uint32_t meeting_ = 0;
};

}  // namespace troupe
