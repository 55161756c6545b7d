#include "launch/network/refusals.hpp"

#include <algorithm>
#include <bit>

namespace troupe {
namespace {

constexpr std::size_t kReasons = 32;

}  // namespace

std::string Refusals::count(const std::string& address, const std::string& reason) {
  ++total_;
  const auto known = by_reason_.find(reason);
  const auto n = ++by_reason_[known != by_reason_.end() || by_reason_.size() < kReasons ? reason : "something else"];
  if (!std::has_single_bit(n)) return {};
  return "a connection from " + address + " was refused: " + reason +
         (n > 1 ? " (" + std::to_string(n) + " so far)" : "");
}

std::string Refusals::summary() const {
  if (total_ == 0) return {};
  std::string text =
      std::to_string(total_) + (total_ == 1 ? " connection was refused: " : " connections were refused: ");
  for (const auto& [reason, n] : by_reason_) {
    if (!text.ends_with(": ")) text += ", ";
    text += std::to_string(n) + " " + reason;
  }
  return text;
}

bool AttemptLimit::may_try(const std::string& address, Time now) {
  const auto found = buckets_.find(address);
  if (found == buckets_.end()) return true;
  auto& bucket = found->second;
  bucket.failures =
      std::max(0.0, bucket.failures - kPerSecond * std::chrono::duration<double>(now - bucket.since).count());
  bucket.since = now;
  if (bucket.failures > 0) return bucket.failures + 1 <= kBurst;
  buckets_.erase(found);
  return true;
}

void AttemptLimit::failed(const std::string& address, Time now) {
  (void)may_try(address, now);
  if (buckets_.size() >= kAddresses && !buckets_.contains(address)) {
    buckets_.erase(std::min_element(buckets_.begin(), buckets_.end(), [](const auto& a, const auto& b) {
      return a.second.failures < b.second.failures;
    }));
  }
  auto& bucket = buckets_[address];
  bucket.failures = std::min(bucket.failures + 1, kBurst);
  bucket.since = now;
}

}  // namespace troupe
