#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>

/// What the disk alone costs whoever computes meanwhile: a thread writes memory that is there already to a file, past
/// the page cache, in the pieces that a checkpoint is written in, and no more.
class PlainWrite {
 public:
  explicit PlainWrite(std::size_t bytes)
      : bytes_((bytes + kPage - 1) / kPage * kPage),
        memory_(
            static_cast<std::byte*>(std::aligned_alloc(kHugePage, (bytes_ + kHugePage - 1) / kHugePage * kHugePage)),
            &std::free) {
    if (!memory_) throw std::bad_alloc();
    ::madvise(memory_.get(), bytes_, MADV_HUGEPAGE);  // as a snapshot's
    std::memset(memory_.get(), 1, bytes_);
  }
  ~PlainWrite() {
    if (thread_.joinable()) thread_.join();
  }

  void begin(const std::string& path) {
    done_ = false;
    thread_ = std::thread([this, path] {
      write(path);
      done_ = true;
    });
  }
  bool done() const { return done_; }
  /// Throws std::system_error where the disk did not take it.
  void wait() {
    thread_.join();
    if (error_ != 0) throw std::system_error(error_, std::generic_category(), "plain write");
  }

 private:
  static constexpr std::size_t kPage = 4096, kHugePage = std::size_t{2} << 20, kPiece = std::size_t{16} << 20;

  void write(const std::string& path) {
    error_ = 0;
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
    for (std::size_t at = 0; file >= 0 && at < bytes_; at += kPiece) {
      const auto piece = std::min(kPiece, bytes_ - at);
      if (::write(file, memory_.get() + at, piece) != static_cast<ssize_t>(piece)) error_ = EIO;
    }
    if (file < 0 || ::fsync(file) != 0) error_ = errno;
    if (file >= 0) ::close(file);
  }

  std::size_t bytes_;
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
  std::thread thread_;
  std::atomic<bool> done_ = false;
  int error_ = 0;  // the thread's until it is joined
};
