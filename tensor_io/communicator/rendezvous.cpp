#include "tensor_io/communicator/rendezvous.hpp"

#include <utility>

namespace troupe {

void LocalRendezvous::put(const std::string& key, std::string value) {
  {
    std::lock_guard lock(mutex_);
    values_.insert_or_assign(key, std::move(value));
  }
  changed_.notify_all();
}

std::string LocalRendezvous::get(const std::string& key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const bool there = changed_.wait_for(lock, timeout, [&] { return aborted_ || values_.contains(key); });
  check("rendezvous for '" + key + "'");
  if (!there) {
    throw Error(ErrorCode::timeout, "rendezvous for '" + key + "'",
                "no rank published it within " + std::to_string(timeout.count()) + " ms",
                "check that every rank is running");
  }
  return values_.at(key);
}

void LocalRendezvous::throw_if_aborted(const std::string& operation) {
  const std::lock_guard lock(mutex_);
  check(operation);
}

void LocalRendezvous::check(const std::string& operation) const {
  if (aborted_)
    throw Error(ErrorReport{.code = ErrorCode::aborted, .operation = operation, .cause = aborted_->to_string()});
}

void LocalRendezvous::abort(const ErrorReport& reason) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (!aborted_) aborted_ = reason;
  }
  changed_.notify_all();
}

}  // namespace troupe
