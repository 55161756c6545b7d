#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace troupe {

/// A piece of memory that several processes of one host map: a memfd, reached by the others through /proc/<pid>/fd/<n>.
/// It has no name that could clash or stay behind, and does not count against a container's small /dev/shm. It lives as
/// long as one of them maps it. The same works between threads, which map it once each.
class SharedSegment {
 public:
  /// Zeroed. `reserve` takes the pages now, so that a full machine is an Error(unavailable) here and not a SIGBUS
  /// later.
  static std::shared_ptr<SharedSegment> create(std::size_t bytes, bool reserve);
  /// Descriptor `fd` of process `pid`. Throws Error(unavailable) if it is missing, not ours to open, no sealed memfd,
  /// or has another inode or length: then the number means another file on this host.
  static std::shared_ptr<SharedSegment> open(pid_t pid, int fd, std::uint64_t inode, std::size_t bytes);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const noexcept { return data_; }
  int descriptor() const noexcept { return fd_; }
  std::uint64_t inode() const noexcept { return inode_; }
  bool holds(const void* pointer, std::size_t length) const noexcept;

  /// Once every peer has mapped it.
  void close_descriptor() noexcept;
  /// Gives the pages back to the machine, though others may still map them. They read as zero afterwards.
  void release_pages() noexcept;

 private:
  SharedSegment(int fd, std::size_t bytes);

  int fd_;
  std::size_t bytes_;
  std::uint64_t inode_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace troupe
