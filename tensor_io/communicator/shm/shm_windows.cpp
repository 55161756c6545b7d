// Memory that every rank of a shared-memory communicator maps: allocate() makes it, collectives find their tensors in
// it.
#include <ATen/ops/from_blob.h>

#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/communicator/communicator_errors.hpp"
#include "tensor_io/communicator/shm/shm_communicator.hpp"

namespace troupe {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

at::Tensor ShmCommunicator::do_allocate(std::int64_t bytes, const CollectiveRecord& record) {
  Window window(world_size());
  auto& own = window[rank()];
  const std::size_t length = shm::round_up(std::max<std::size_t>(bytes, 1), kPage);
  std::string problem = problem_of([&] { own = SharedSegment::create(length, true); });
  group_->meet(record, own ? own->descriptor() : -1, own ? static_cast<std::int64_t>(own->inode()) : 0);
  fault_point("allocate", ledger().step());
  for (int r = 0; r < world_size() && problem.empty(); ++r) {
    if (r != rank()) problem = problem_of([&] { window[r] = memory_of(r, length); });
  }
  agree_on_memory(record, problem);
  own->close_descriptor();
  windows_.push_back(window);
  // The window table keeps the addresses taken until the communicator ends, but the pages go back with the tensor.
  return at::from_blob(
      own->data(), {bytes}, [own](void*) { own->release_pages(); }, at::TensorOptions().dtype(at::kByte));
}

std::shared_ptr<SharedSegment> ShmCommunicator::memory_of(int rank, std::size_t length) const {
  const auto* words = group_->peer_words(rank);
  if (words[0] < 0) throw Error(ErrorCode::unavailable, {}, name_ranks(options(), {rank}) + " has no memory for it");
  return SharedSegment::open(group_->pid(rank), static_cast<int>(words[0]), static_cast<std::uint64_t>(words[1]),
                             length);
}

// All have mapped all, or none goes on. A rank that died took its memory along, perhaps after it came to the first of
// these meetings: it does not come to the second, which says that it was lost.
void ShmCommunicator::agree_on_memory(const CollectiveRecord& record, std::string problem) {
  group_->meet(record, problem.empty() ? 1 : 0, 0);
  for (int r = 0; r < world_size(); ++r) {
    if (group_->peer_words(r)[0] == 0 && problem.empty()) problem = name_ranks(options(), {r}) + " could not map it";
  }
  if (problem.empty()) return;
  group_->meet_again();
  throw Error(ErrorCode::unavailable, {}, problem);
}

at::Tensor ShmCommunicator::do_allocate_shared(std::int64_t bytes, const CollectiveRecord& record) {
  const std::size_t length = shm::round_up(std::max<std::size_t>(bytes, 1), kPage);
  std::shared_ptr<SharedSegment> segment;
  std::string problem;
  if (rank() == 0) problem = problem_of([&] { segment = SharedSegment::create(length, true); });
  group_->meet(record, segment ? segment->descriptor() : -1, segment ? static_cast<std::int64_t>(segment->inode()) : 0);
  fault_point("allocate", ledger().step());
  if (rank() != 0) problem = problem_of([&] { segment = memory_of(0, length); });
  agree_on_memory(record, problem);
  if (rank() == 0) segment->close_descriptor();
  std::erase_if(shared_, [](const auto& gone) { return gone.expired(); });
  shared_.push_back(segment);
  // The pages go back with the last rank's mapping: another rank may still read them when this one drops its tensor.
  return at::from_blob(
      segment->data(), {bytes}, [segment](void*) {}, at::TensorOptions().dtype(at::kByte));
}

std::vector<float*> ShmCommunicator::on_all_ranks(const at::Tensor& tensor) const {
  for (const auto& window : windows_) {
    const auto& own = *window[rank()];
    if (!own.holds(tensor.data_ptr(), tensor.nbytes())) continue;
    const auto offset = static_cast<std::byte*>(tensor.data_ptr()) - own.data();
    std::vector<float*> places;
    places.reserve(window.size());
    for (const auto& segment : window) places.push_back(reinterpret_cast<float*>(segment->data() + offset));
    return places;
  }
  for (const auto& shared : shared_) {
    if (const auto segment = shared.lock(); segment && segment->holds(tensor.data_ptr(), tensor.nbytes()))
      return {static_cast<float*>(tensor.data_ptr())};
  }
  throw Error(ErrorCode::usage, "all_reduce_update", "the output is not in memory of this communicator",
              "take it from allocate() or allocate_shared()");
}

bool ShmCommunicator::meet_in_windows(const at::Tensor& tensor, const CollectiveRecord& record) {
  std::int64_t number = -1;
  std::int64_t offset = 0;
  for (std::size_t w = 0; w < windows_.size(); ++w) {
    const auto& own = *windows_[w][rank()];
    if (!own.holds(tensor.data_ptr(), tensor.nbytes())) continue;
    number = static_cast<std::int64_t>(w);
    offset = static_cast<std::byte*>(tensor.data_ptr()) - own.data();
    break;
  }
  group_->meet(record, number, offset);
  for (int r = 0; r < world_size(); ++r) {
    const auto peer_window = group_->peer_words(r)[0];
    if (peer_window < 0) return false;
    pointers_[r] = windows_[peer_window][r]->data() + group_->peer_words(r)[1];
  }
  return true;
}

}  // namespace troupe
