// How the ranks of a host find each other's memory, and prove that they have.
#include <unistd.h>

#include <random>
#include <sstream>

#include "tensor_io/communicator/group_setup.hpp"
#include "tensor_io/communicator/shm/shm_group.hpp"

namespace troupe {
namespace {

std::shared_ptr<SharedSegment> create_control(int world_size) {
  auto segment = SharedSegment::create(shm::control_bytes(world_size), false);
  auto* header = new (segment->data()) shm::Header{};
  std::random_device random;
  for (auto& word : header->nonce) word = (static_cast<std::uint64_t>(random()) << 32) | random();
  header->world_size = world_size;
  header->magic = shm::kMagic;
  return segment;
}

// What rank 0 announces.
struct Announcement {
  pid_t pid = 0;
  std::uint64_t start = 0;
  int descriptor = -1;
  std::uint64_t inode = 0;
  std::uint64_t nonce[2] = {0, 0};

  std::string to_string() const {
    std::ostringstream text;
    text << pid << ' ' << start << ' ' << descriptor << ' ' << inode << ' ' << nonce[0] << ' ' << nonce[1];
    return text.str();
  }
  static Announcement parse(const std::string& text) {
    Announcement read;
    std::istringstream(text) >> read.pid >> read.start >> read.descriptor >> read.inode >> read.nonce[0] >>
        read.nonce[1];
    return read;
  }
};

std::shared_ptr<SharedSegment> attach(const Announcement& to, int world_size) {
  auto segment = SharedSegment::open(to.pid, to.descriptor, to.inode, shm::control_bytes(world_size));
  const auto& header = *reinterpret_cast<const shm::Header*>(segment->data());
  if (header.magic != shm::kMagic || header.world_size != static_cast<std::uint64_t>(world_size) ||
      header.nonce[0] != to.nonce[0] || header.nonce[1] != to.nonce[1]) {
    throw Error(ErrorCode::unavailable, "joining shared memory", "the memory does not hold what was announced");
  }
  return segment;
}

}  // namespace

std::unique_ptr<ShmGroup> ShmGroup::join(const CommunicatorOptions& options, std::string* why_not) {
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  std::shared_ptr<SharedSegment> segment;
  std::string problem;
  Announcement own{getpid(), process_start(getpid())};
  if (options.rank == 0) {
    problem = problem_of([&] {
      segment = create_control(options.world_size);
      const auto& header = *reinterpret_cast<const shm::Header*>(segment->data());
      own.descriptor = segment->descriptor();
      own.inode = segment->inode();
      own.nonce[0] = header.nonce[0];
      own.nonce[1] = header.nonce[1];
    });
  }
  const auto announced = all_gather_at_rendezvous(options, "shm", own.to_string(), deadline);
  std::vector<ProcessWatch> watches;
  for (const auto& text : announced) {
    const auto process = Announcement::parse(text);
    watches.emplace_back(process.pid, process.start);
    if (process.start == 0 && problem.empty()) problem = "/proc cannot be read";
  }
  if (options.rank > 0) {
    const auto why = problem_of([&] { segment = attach(Announcement::parse(announced[0]), options.world_size); });
    if (!why.empty()) problem = why;
  }
  *why_not = agree(options, "shm-attached", problem, deadline);
  if (!why_not->empty()) return nullptr;
  segment->close_descriptor();  // all have mapped it
  return std::unique_ptr<ShmGroup>(new ShmGroup(options, std::move(segment), std::move(watches)));
}

}  // namespace troupe
