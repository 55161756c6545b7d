#include "tensor_io/communicator/gloo/gloo_communicator.hpp"

#include <gloo/common/error.h>

#include <algorithm>
#include <cstring>

#include "tensor_io/communicator/byte_slice.hpp"
#include "tensor_io/communicator/communicator_arguments.hpp"
#include "tensor_io/communicator/gloo/gloo_mesh.hpp"
#include "tensor_io/kernels/reduce_kernels.hpp"

namespace troupe {
namespace {

using Transfers = std::vector<GlooMesh::Transfer>;

constexpr std::int64_t kOneRoundBytes = 32 * 1024;  // up to here everybody sends everything to everybody: one round
constexpr std::int64_t kChunkBytes =
    4 * 1024 * 1024;  // of a large reduction; two are under way, which bounds the scratch memory
constexpr std::int64_t kTreeBytes = 1024 * 1024;  // passed on while the next is received

std::byte* data_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }
std::int64_t size_of(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// Messages of one operation and `phase` between two ranks arrive in the order in which they were sent. Odd slots are
// the mesh's own.
std::uint64_t slot_of(const CollectiveRecord& record, unsigned phase = 0) {
  return (record.fingerprint() & ~std::uint64_t{0xff}) | (phase << 1);
}

void wait_received(GlooMesh& mesh, const Transfers& transfers) {
  for (const auto& transfer : transfers) mesh.wait_received(transfer);
}
void wait_sent(GlooMesh& mesh, const Transfers& transfers) {
  for (const auto& transfer : transfers) mesh.wait_sent(transfer);
}

// What `post` makes of each other rank.
template <class Post>
Transfers with_others(const Communicator& group, Post post) {
  Transfers transfers;
  for (int r = 0; r < group.world_size(); ++r) {
    if (r != group.rank()) transfers.push_back(post(r));
  }
  return transfers;
}

}  // namespace

template <class Work>
void GlooCommunicator::guarded(const CollectiveRecord& record, Work&& work) {
  if (auto reason = broken()) throw Error(*reason);  // aborted between the check of the call and here
  try {
    work();
  } catch (const gloo::Exception& error) {
    // Gloo says it in words only: "Timed out waiting 1000ms for recv operation to complete".
    const std::string what = error.what();
    throw Error(explain(record, what.find("imed out") != std::string::npos, what));
  }
}

GlooCommunicator::GlooCommunicator(CommunicatorOptions given)
    : Communicator(std::move(given)), mesh_(std::make_unique<GlooMesh>(options())) {}

GlooCommunicator::~GlooCommunicator() = default;

std::byte* GlooCommunicator::scratch(std::int64_t bytes) {
  if (static_cast<std::int64_t>(scratch_.size()) < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

void GlooCommunicator::reduce_parts(const std::byte* own, const std::byte* scratch, std::int64_t stride,
                                    std::byte* output, std::int64_t bytes, ReduceOp op,
                                    const CollectiveRecord& record) {
  inputs_.clear();
  for (int r = 0; r < world_size(); ++r) inputs_.push_back(r == rank() ? own : scratch + r * stride);
  void* const outputs[] = {output};
  reduce_all(static_cast<at::ScalarType>(record.dtype), op, world_size(), inputs_, outputs, bytes);
}

void GlooCommunicator::do_all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record) {
  guarded(record, [&] {
    const auto bytes = size_of(tensor);
    bytes <= kOneRoundBytes ? all_reduce_small(data_of(tensor), bytes, op, record)
                            : all_reduce_large(data_of(tensor), bytes, op, record);
  });
}

void GlooCommunicator::all_reduce_small(std::byte* data, std::int64_t bytes, ReduceOp op,
                                        const CollectiveRecord& record) {
  auto* parts = scratch(world_size() * bytes);
  const auto incoming =
      with_others(*this, [&](int r) { return mesh_->recv(parts + r * bytes, bytes, r, slot_of(record)); });
  const auto outgoing = with_others(*this, [&](int r) { return mesh_->send(data, bytes, r, slot_of(record)); });
  wait_received(*mesh_, incoming);
  wait_sent(*mesh_, outgoing);  // `data` is about to change
  reduce_parts(data, parts, bytes, data, bytes, op, record);
}

// Two phases a chunk: the slices go to their owners, the results come back. The next chunk's first phase is on its way
// meanwhile.
void GlooCommunicator::all_reduce_large(std::byte* data, std::int64_t bytes, ReduceOp op,
                                        const CollectiveRecord& record) {
  const std::int64_t part = slice_of(std::min(bytes, kChunkBytes), 0, world_size()).count;
  const std::int64_t set = part * world_size();
  auto* parts = scratch(2 * set);
  const std::int64_t chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
  const auto chunk_bytes = [&](std::int64_t chunk) { return std::min(kChunkBytes, bytes - chunk * kChunkBytes); };
  Transfers incoming[2], outgoing[2], results_in[2], results_out[2];

  const auto post_slices = [&](std::int64_t chunk) {
    auto* begin = data + chunk * kChunkBytes;
    const ByteSlice own = slice_of(chunk_bytes(chunk), rank(), world_size());
    incoming[chunk % 2] = with_others(*this, [&](int r) {
      return mesh_->recv(parts + chunk % 2 * set + r * part, own.count, r, slot_of(record, 0));
    });
    outgoing[chunk % 2] = with_others(*this, [&](int r) {
      const ByteSlice theirs = slice_of(chunk_bytes(chunk), r, world_size());
      return mesh_->send(begin + theirs.begin, theirs.count, r, slot_of(record, 0));
    });
  };
  const auto post_results = [&](std::int64_t chunk) {
    auto* begin = data + chunk * kChunkBytes;
    const ByteSlice own = slice_of(chunk_bytes(chunk), rank(), world_size());
    wait_received(*mesh_, incoming[chunk % 2]);
    reduce_parts(begin + own.begin, parts + chunk % 2 * set, part, begin + own.begin, own.count, op, record);
    wait_sent(*mesh_, outgoing[chunk % 2]);  // the results are about to overwrite these slices
    results_in[chunk % 2] = with_others(*this, [&](int r) {
      const ByteSlice theirs = slice_of(chunk_bytes(chunk), r, world_size());
      return mesh_->recv(begin + theirs.begin, theirs.count, r, slot_of(record, 1));
    });
    results_out[chunk % 2] =
        with_others(*this, [&](int r) { return mesh_->send(begin + own.begin, own.count, r, slot_of(record, 1)); });
  };
  const auto finish = [&](std::int64_t chunk) {
    wait_received(*mesh_, results_in[chunk % 2]);
    wait_sent(*mesh_, results_out[chunk % 2]);
  };

  post_slices(0);
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) post_slices(chunk + 1);
    post_results(chunk);
    if (chunk > 0) finish(chunk - 1);
  }
  finish(chunks - 1);
}

void GlooCommunicator::do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                         const CollectiveRecord& record) {
  guarded(record, [&] {
    const auto bytes = size_of(output);
    const auto part = std::max(kCacheLine, kChunkBytes / world_size() / kCacheLine * kCacheLine);
    auto* parts = scratch(std::min(part, bytes) * world_size());
    const auto stride = std::min(part, bytes);
    for (std::int64_t at = 0; at < bytes; at += part) {
      const auto count = std::min(part, bytes - at);
      const auto incoming =
          with_others(*this, [&](int r) { return mesh_->recv(parts + r * stride, count, r, slot_of(record)); });
      const auto outgoing = with_others(
          *this, [&](int r) { return mesh_->send(data_of(input) + r * bytes + at, count, r, slot_of(record)); });
      wait_received(*mesh_, incoming);
      reduce_parts(data_of(input) + rank() * bytes + at, parts, stride, data_of(output) + at, count, op, record);
      wait_sent(*mesh_, outgoing);
    }
  });
}

void GlooCommunicator::do_all_gather(const at::Tensor& output, const at::Tensor& input,
                                     const CollectiveRecord& record) {
  guarded(record, [&] {
    const auto bytes = size_of(input);
    const auto incoming =
        with_others(*this, [&](int r) { return mesh_->recv(data_of(output) + r * bytes, bytes, r, slot_of(record)); });
    const auto outgoing =
        with_others(*this, [&](int r) { return mesh_->send(data_of(input), bytes, r, slot_of(record)); });
    copy_bytes(data_of(output) + rank() * bytes, data_of(input), bytes);
    wait_received(*mesh_, incoming);
    wait_sent(*mesh_, outgoing);
  });
}

// A binomial tree, counted from the root: who has the data passes it to the rank whose distance has one more bit.
void GlooCommunicator::do_broadcast(const at::Tensor& tensor, int root, const CollectiveRecord& record) {
  guarded(record, [&] {
    const int distance = (rank() - root + world_size()) % world_size();
    int reach = 1;
    while (reach <= distance) reach *= 2;  // the parent lacks this rank's highest bit; children have a higher one
    const int parent = (distance - reach / 2 + root) % world_size();
    Transfers incoming;
    Transfers outgoing;
    for (std::int64_t at = 0; at < size_of(tensor) && distance > 0; at += kTreeBytes) {
      incoming.push_back(
          mesh_->recv(data_of(tensor) + at, std::min(kTreeBytes, size_of(tensor) - at), parent, slot_of(record)));
    }
    std::size_t chunk = 0;
    for (std::int64_t at = 0; at < size_of(tensor); at += kTreeBytes, ++chunk) {
      if (distance > 0) mesh_->wait_received(incoming[chunk]);
      for (int bit = reach; distance + bit < world_size(); bit *= 2) {
        outgoing.push_back(mesh_->send(data_of(tensor) + at, std::min(kTreeBytes, size_of(tensor) - at),
                                       (distance + bit + root) % world_size(), slot_of(record)));
      }
    }
    wait_sent(*mesh_, outgoing);
  });
}

void GlooCommunicator::do_reduce(const at::Tensor& tensor, int root, ReduceOp op, const CollectiveRecord& record) {
  guarded(record, [&] {
    const auto bytes = size_of(tensor);
    const auto part = std::min(bytes, kTreeBytes);
    auto* parts = rank() == root ? scratch(part * world_size()) : nullptr;
    for (std::int64_t at = 0; at < bytes; at += kTreeBytes) {
      const auto count = std::min(part, bytes - at);
      if (rank() != root) {
        mesh_->wait_sent(mesh_->send(data_of(tensor) + at, count, root, slot_of(record)));
        continue;
      }
      const auto incoming =
          with_others(*this, [&](int r) { return mesh_->recv(parts + r * part, count, r, slot_of(record)); });
      wait_received(*mesh_, incoming);
      reduce_parts(data_of(tensor) + at, parts, part, data_of(tensor) + at, count, op, record);
    }
  });
}

void GlooCommunicator::do_gather(const at::Tensor& output, const at::Tensor& input, int root,
                                 const CollectiveRecord& record) {
  guarded(record, [&] {
    const auto bytes = size_of(input);
    if (rank() != root) return mesh_->wait_sent(mesh_->send(data_of(input), bytes, root, slot_of(record)));
    const auto incoming =
        with_others(*this, [&](int r) { return mesh_->recv(data_of(output) + r * bytes, bytes, r, slot_of(record)); });
    copy_bytes(data_of(output) + root * bytes, data_of(input), bytes);
    wait_received(*mesh_, incoming);
  });
}

void GlooCommunicator::do_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                                  const CollectiveRecord& record) {
  guarded(record, [&] {
    const auto bytes = size_of(output);
    if (rank() != root) return mesh_->wait_received(mesh_->recv(data_of(output), bytes, root, slot_of(record)));
    const auto outgoing =
        with_others(*this, [&](int r) { return mesh_->send(data_of(input) + r * bytes, bytes, r, slot_of(record)); });
    copy_bytes(data_of(output), data_of(input) + root * bytes, bytes);
    wait_sent(*mesh_, outgoing);
  });
}

void GlooCommunicator::do_all_to_all(const at::Tensor& output, const at::Tensor& input,
                                     const CollectiveRecord& record) {
  guarded(record, [&] {
    const auto bytes = size_of(input) / world_size();
    const auto incoming =
        with_others(*this, [&](int r) { return mesh_->recv(data_of(output) + r * bytes, bytes, r, slot_of(record)); });
    const auto outgoing =
        with_others(*this, [&](int r) { return mesh_->send(data_of(input) + r * bytes, bytes, r, slot_of(record)); });
    copy_bytes(data_of(output) + rank() * bytes, data_of(input) + rank() * bytes, bytes);
    wait_received(*mesh_, incoming);
    wait_sent(*mesh_, outgoing);
  });
}

void GlooCommunicator::do_send(const at::Tensor& tensor, int destination, const CollectiveRecord& record) {
  guarded(record, [&] {
    std::byte receipt{1};
    const auto answer = mesh_->recv(&receipt, 1, destination, slot_of(record, 1));
    mesh_->wait_sent(mesh_->send(data_of(tensor), size_of(tensor), destination, slot_of(record)));
    mesh_->wait_received(answer);
  });
}

void GlooCommunicator::do_recv(const at::Tensor& tensor, int source, const CollectiveRecord& record) {
  guarded(record, [&] {
    mesh_->wait_received(mesh_->recv(data_of(tensor), size_of(tensor), source, slot_of(record)));
    const std::byte receipt{1};
    mesh_->wait_sent(mesh_->send(&receipt, 1, source, slot_of(record, 1)));
  });
}

// After round k every rank has heard, directly or not, of the 2^(k+1) ranks before it.
void GlooCommunicator::do_barrier(const CollectiveRecord& record) {
  guarded(record, [&] {
    std::byte out{1};
    std::byte in{0};
    unsigned round = 0;
    for (int distance = 1; distance < world_size(); distance *= 2, ++round) {
      const auto incoming =
          mesh_->recv(&in, 1, (rank() - distance + world_size()) % world_size(), slot_of(record, round));
      const auto outgoing = mesh_->send(&out, 1, (rank() + distance) % world_size(), slot_of(record, round));
      mesh_->wait_received(incoming);
      mesh_->wait_sent(outgoing);
    }
  });
}

}  // namespace troupe
