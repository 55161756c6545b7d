#include "tensor_io/communicator/shm/shm_communicator.hpp"

#include <algorithm>
#include <cstring>

#include "tensor_io/communicator/byte_slice.hpp"
#include "tensor_io/communicator/communicator_arguments.hpp"
#include "tensor_io/kernels/reduce_kernels.hpp"

namespace troupe {
namespace {

constexpr auto kOutbox = static_cast<std::int64_t>(shm::kOutboxBytes);
// Up to here one meeting, and each rank adds everything itself, is faster than two meetings and a slice each.
constexpr std::int64_t kSmallBytes = 8 * 1024;
// What fits into a meeting's words: it comes with the line that says that a rank is there, where an outbox would be
// another line to fetch.
constexpr std::int64_t kWordBytes = 16;

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

ShmCommunicator::ShmCommunicator(CommunicatorOptions options, std::unique_ptr<ShmGroup> group)
    : Communicator(std::move(options)), group_(std::move(group)), pointers_(world_size()) {
  inputs_.reserve(world_size());
  outputs_.reserve(world_size());
}

std::int64_t ShmCommunicator::part_bytes() const noexcept { return kOutbox / world_size() / kCacheLine * kCacheLine; }

template <class Stage, class Take>
void ShmCommunicator::in_chunks(std::int64_t bytes, std::int64_t capacity, const CollectiveRecord& record,
                                bool compared, Stage stage, Take take) {
  std::int64_t done = 0;
  do {
    const std::int64_t count = std::min(bytes - done, capacity);
    stage(done, count);
    if (compared) {
      group_->meet_again();
    } else {
      group_->meet(record, -1, 0);
      compared = true;
    }
    take(done, count);
    done += count;
  } while (done < bytes);
}

void ShmCommunicator::reduce_here(const CollectiveRecord& record, ReduceOp op, std::int64_t bytes) {
  reduce_all(static_cast<at::ScalarType>(record.dtype), op, world_size(), inputs_, outputs_, bytes);
}

void ShmCommunicator::do_all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record) {
  if (static_cast<std::int64_t>(tensor.nbytes()) <= kWordBytes) return all_reduce_in_words(tensor, op, record);
  if (static_cast<std::int64_t>(tensor.nbytes()) <= kSmallBytes) return all_reduce_staged(tensor, op, record, false);
  if (meet_in_windows(tensor, record)) return all_reduce_in_place(tensor, op, record);
  // Reading everything of two others costs less than writing the result to an outbox and reading it back.
  if (world_size() <= 3) return all_reduce_staged(tensor, op, record, true);
  all_reduce_by_slices(tensor, op, record);
}

void ShmCommunicator::all_reduce_in_words(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record) {
  auto* data = bytes_of(tensor);
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  std::int64_t words[2] = {};
  copy_bytes(words, data, bytes);
  group_->meet(record, words[0], words[1]);
  inputs_.clear();
  for (int r = 0; r < world_size(); ++r)
    inputs_.push_back(r == rank() ? data : static_cast<const void*>(group_->peer_words(r)));
  outputs_.assign(1, data);
  reduce_here(record, op, bytes);
}

void ShmCommunicator::all_reduce_in_place(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record) {
  const ByteSlice slice = slice_of(static_cast<std::int64_t>(tensor.nbytes()), rank(), world_size());
  inputs_.clear();
  outputs_.clear();
  for (auto* pointer : pointers_) {
    inputs_.push_back(pointer + slice.begin);
    outputs_.push_back(pointer + slice.begin);
  }
  reduce_here(record, op, slice.count);
  group_->meet_again();
}

void ShmCommunicator::all_reduce_staged(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record,
                                        bool compared) {
  auto* data = bytes_of(tensor);
  in_chunks(
      static_cast<std::int64_t>(tensor.nbytes()), kOutbox, record, compared,
      [&](std::int64_t at, std::int64_t count) { stage(group_->outbox(), data + at, count); },
      [&](std::int64_t at, std::int64_t count) {
        inputs_.clear();
        for (int r = 0; r < world_size(); ++r) inputs_.push_back(r == rank() ? data + at : group_->inbox(r));
        outputs_.assign(1, data + at);
        reduce_here(record, op, count);
      });
}

void ShmCommunicator::all_reduce_by_slices(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record) {
  auto* data = bytes_of(tensor);
  in_chunks(
      static_cast<std::int64_t>(tensor.nbytes()), kOutbox, record, true,
      [&](std::int64_t at, std::int64_t count) { stage(group_->outbox(), data + at, count); },
      [&](std::int64_t at, std::int64_t count) {
        const ByteSlice slice = slice_of(count, rank(), world_size());
        const auto* result = group_->inbox(rank());
        inputs_.clear();
        outputs_.clear();
        for (int r = 0; r < world_size(); ++r) {
          inputs_.push_back(group_->inbox(r) + slice.begin);
          outputs_.push_back(group_->inbox(r) + slice.begin);
        }
        reduce_here(record, op, slice.count);
        group_->meet_again();
        copy_bytes(data + at, result, count);
      });
}

// The owner of a slice reads it from all, and writes what becomes of it into every rank's memory: as in
// all_reduce_in_place, with more to write, and no gradient to write at all.
void ShmCommunicator::do_all_reduce_update(const at::Tensor& gradients, const ReducedUpdate& update,
                                           const CollectiveRecord& record) {
  if (static_cast<std::int64_t>(gradients.nbytes()) <= kSmallBytes)
    return Communicator::do_all_reduce_update(gradients, update, record);
  UpdateCopies copies{on_all_ranks(update.next.parameter), {}, {}};
  if (update.next.first.defined()) copies.first = on_all_ranks(update.next.first);
  if (update.next.second.defined()) copies.second = on_all_ranks(update.next.second);
  if (!meet_in_windows(gradients, record)) {
    throw Error(ErrorCode::usage, "all_reduce_update", "the gradients are not in memory of this communicator",
                "take it from allocate()");
  }
  const ByteSlice slice = slice_of(static_cast<std::int64_t>(gradients.nbytes()), rank(), world_size());
  std::vector<const float*> inputs;
  for (const auto* pointer : pointers_) inputs.push_back(reinterpret_cast<const float*>(pointer));
  constexpr auto kElement = static_cast<std::int64_t>(sizeof(float));
  apply_update(update, inputs, world_size(), copies, slice.begin / kElement, (slice.begin + slice.count) / kElement);
  group_->meet_again();
}

void ShmCommunicator::do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                        const CollectiveRecord& record) {
  const auto* in = bytes_of(input);
  auto* out = bytes_of(output);
  const auto bytes = static_cast<std::int64_t>(output.nbytes());
  const bool compared = bytes > kSmallBytes;
  if (compared && meet_in_windows(input, record)) {
    inputs_.clear();
    for (auto* pointer : pointers_) inputs_.push_back(pointer + rank() * bytes);
    outputs_.assign(1, out);
    reduce_here(record, op, bytes);
    return group_->meet_again();
  }
  const auto part = part_bytes();
  in_chunks(
      bytes, part, record, compared,
      [&](std::int64_t at, std::int64_t count) {
        for (int r = 0; r < world_size(); ++r) {
          if (r != rank()) stage(group_->outbox() + r * part, in + r * bytes + at, count);
        }
      },
      [&](std::int64_t at, std::int64_t count) {
        inputs_.clear();
        for (int r = 0; r < world_size(); ++r)
          inputs_.push_back(r == rank() ? in + r * bytes + at : group_->inbox(r) + rank() * part);
        outputs_.assign(1, out + at);
        reduce_here(record, op, count);
      });
}

void ShmCommunicator::do_all_gather(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord& record) {
  const auto* in = bytes_of(input);
  auto* out = bytes_of(output);
  const auto bytes = static_cast<std::int64_t>(input.nbytes());
  if (bytes > kSmallBytes && meet_in_windows(output, record)) {
    for (int r = 0; r < world_size(); ++r) {
      auto* to = pointers_[r] + rank() * bytes;
      if (to != in) copy_bytes(to, in, bytes);
    }
    return group_->meet_again();
  }
  in_chunks(
      bytes, kOutbox, record, bytes > kSmallBytes,
      [&](std::int64_t at, std::int64_t count) { stage(group_->outbox(), in + at, count); },
      [&](std::int64_t at, std::int64_t count) {
        for (int r = 0; r < world_size(); ++r) {
          if (r != rank()) copy_bytes(out + r * bytes + at, group_->inbox(r), count);
        }
      });
  if (out + rank() * bytes != in) copy_bytes(out + rank() * bytes, in, bytes);
}

void ShmCommunicator::do_broadcast(const at::Tensor& tensor, int root, const CollectiveRecord& record) {
  auto* data = bytes_of(tensor);
  in_chunks(
      static_cast<std::int64_t>(tensor.nbytes()), kOutbox, record, false,
      [&](std::int64_t at, std::int64_t count) {
        if (rank() == root) stage(group_->outbox(), data + at, count);
      },
      [&](std::int64_t at, std::int64_t count) {
        if (rank() != root) copy_bytes(data + at, group_->inbox(root), count);
      });
}

void ShmCommunicator::do_reduce(const at::Tensor& tensor, int root, ReduceOp op, const CollectiveRecord& record) {
  auto* data = bytes_of(tensor);
  in_chunks(
      static_cast<std::int64_t>(tensor.nbytes()), kOutbox, record, false,
      [&](std::int64_t at, std::int64_t count) {
        if (rank() != root) stage(group_->outbox(), data + at, count);
      },
      [&](std::int64_t at, std::int64_t count) {
        if (rank() != root) return;
        inputs_.clear();
        for (int r = 0; r < world_size(); ++r) inputs_.push_back(r == root ? data + at : group_->inbox(r));
        outputs_.assign(1, data + at);
        reduce_here(record, op, count);
      });
}

void ShmCommunicator::do_gather(const at::Tensor& output, const at::Tensor& input, int root,
                                const CollectiveRecord& record) {
  const auto* in = bytes_of(input);
  auto* out = rank() == root ? bytes_of(output) : nullptr;
  const auto bytes = static_cast<std::int64_t>(input.nbytes());
  in_chunks(
      bytes, kOutbox, record, false,
      [&](std::int64_t at, std::int64_t count) {
        if (rank() != root) stage(group_->outbox(), in + at, count);
      },
      [&](std::int64_t at, std::int64_t count) {
        for (int r = 0; rank() == root && r < world_size(); ++r) {
          if (r != root) copy_bytes(out + r * bytes + at, group_->inbox(r), count);
        }
      });
  if (rank() == root && out + root * bytes != in) copy_bytes(out + root * bytes, in, bytes);
}

void ShmCommunicator::do_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                                 const CollectiveRecord& record) {
  const auto* in = rank() == root ? bytes_of(input) : nullptr;
  auto* out = bytes_of(output);
  const auto bytes = static_cast<std::int64_t>(output.nbytes());
  const auto part = part_bytes();
  in_chunks(
      bytes, part, record, false,
      [&](std::int64_t at, std::int64_t count) {
        for (int r = 0; rank() == root && r < world_size(); ++r) {
          if (r != root) stage(group_->outbox() + r * part, in + r * bytes + at, count);
        }
      },
      [&](std::int64_t at, std::int64_t count) {
        if (rank() != root) copy_bytes(out + at, group_->inbox(root) + rank() * part, count);
      });
  if (rank() == root && out != in + root * bytes) copy_bytes(out, in + root * bytes, bytes);
}

void ShmCommunicator::do_all_to_all(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord& record) {
  const auto* in = bytes_of(input);
  auto* out = bytes_of(output);
  const auto bytes = static_cast<std::int64_t>(input.nbytes()) / world_size();
  const auto part = part_bytes();
  in_chunks(
      bytes, part, record, false,
      [&](std::int64_t at, std::int64_t count) {
        for (int r = 0; r < world_size(); ++r) {
          if (r != rank()) stage(group_->outbox() + r * part, in + r * bytes + at, count);
        }
      },
      [&](std::int64_t at, std::int64_t count) {
        for (int r = 0; r < world_size(); ++r)
          copy_bytes(out + r * bytes + at, r == rank() ? in + r * bytes + at : group_->inbox(r) + rank() * part, count);
      });
}

void ShmCommunicator::do_send(const at::Tensor& tensor, int destination, const CollectiveRecord& record) {
  group_->send(bytes_of(tensor), static_cast<std::int64_t>(tensor.nbytes()), destination, record);
}

void ShmCommunicator::do_recv(const at::Tensor& tensor, int source, const CollectiveRecord& record) {
  group_->recv(bytes_of(tensor), static_cast<std::int64_t>(tensor.nbytes()), source, record);
}

void ShmCommunicator::do_barrier(const CollectiveRecord& record) { group_->meet(record, -1, 0); }

}  // namespace troupe
