#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace troupe {

/// Counts refused connections, by reason, and decides which of them are worth a line of the log. It is the first of
/// a reason, the second, the fourth, and so on, so that a flood cannot fill a disk. Bounded memory. Pure; one
/// thread.
class Refusals {
 public:
  /// One more; returns a line for the log, or nothing.
  std::string count(const std::string& address, const std::string& reason);
  std::uint64_t total() const noexcept { return total_; }
  /// All of them on one line; empty if there were none.
  std::string summary() const;

 private:
  std::map<std::string, std::uint64_t> by_reason_;
  std::uint64_t total_ = 0;
};

/// How often an address may fail: a bucket of `kBurst` attempts that fills again by `kPerSecond`. An address whose
/// bucket is empty is turned away before anything is computed for it. At most kAddresses are remembered. Pure; one
/// thread.
class AttemptLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr double kBurst = 100, kPerSecond = 20;
  static constexpr std::size_t kAddresses = 1024;

  bool may_try(const std::string& address, Time now);
  void failed(const std::string& address, Time now);

 private:
  struct Bucket {
    double failures = 0;
    Time since;
  };
  std::map<std::string, Bucket> buckets_;
};

}  // namespace troupe
