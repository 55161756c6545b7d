#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tensor_io/communicator/collective_ledger.hpp"

// The content of the control segment of a shared-memory communicator. All ranks are built from one source (compared
// when a job is joined), so plain structs will do. Every atomic is lock-free and works between processes.
namespace troupe::shm {

inline constexpr std::uint64_t kMagic = 0x74726f7570653031;  // "troupe01"
inline constexpr std::size_t kOutboxBytes = 512 * 1024;      // staged by one rank for one meeting
inline constexpr std::size_t kParcelBytes = 256 * 1024;      // staged by one rank for one piece of a send

/// Sleepers wait for `count` to change. A rank that changes their condition rings only if there are sleepers.
struct Bell {
  std::atomic<std::uint32_t> count;
  std::atomic<std::uint32_t> sleepers;
};

/// A rank's part of its meetings. One cache line shows the others that it came and that it agrees. Two sets: for the
/// present meeting and for the next one, which a fast rank may already prepare.
struct alignas(64) Slot {
  std::atomic<std::uint32_t> meeting;  // the last one that this rank came to; counts from 1 and may wrap around
  std::atomic<std::uint32_t> left;     // 1 once its communicator is gone
  std::uint64_t fingerprint[2];        // of the record, in the first meeting of an operation
  std::int64_t words[2][2];            // the operation's data for the others: the place of a tensor
  alignas(64) CollectiveRecord records[2];
};

/// From one rank to another.
struct alignas(64) Channel {
  std::atomic<std::uint32_t> sent;   // parcels that lie, or lay, in the sender's parcel box
  std::atomic<std::uint32_t> taken;  // by the receiver
  Bell bell;
  std::uint64_t fingerprint;
  CollectiveRecord record;
};

/// The first failure of the group. state: 0 none, 1 being written, 2 there.
struct Failure {
  std::atomic<std::uint32_t> state;
  std::uint8_t code;
  char cause[1024];
  char remedy[256];
};

struct Header {
  std::uint64_t magic;
  std::uint64_t world_size;
  std::uint64_t nonce[2];  // random: a rank that reads the announced one here sees the same memory
  alignas(64) Bell bell;
  alignas(64) Failure failure;
};

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr std::size_t slots_offset() { return round_up(sizeof(Header), 4096); }
constexpr std::size_t channels_offset(std::size_t world) { return slots_offset() + world * sizeof(Slot); }
constexpr std::size_t outboxes_offset(std::size_t world) {
  return round_up(channels_offset(world) + world * world * sizeof(Channel), 4096);
}
constexpr std::size_t parcels_offset(std::size_t world) { return outboxes_offset(world) + world * 2 * kOutboxBytes; }
constexpr std::size_t control_bytes(std::size_t world) { return parcels_offset(world) + world * 2 * kParcelBytes; }

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace troupe::shm
