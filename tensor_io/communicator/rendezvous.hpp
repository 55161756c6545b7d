#pragma once
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "tensor_io/base/error.hpp"

namespace troupe {

/// The place in which ranks leave small data for each other while a communicator is set up: addresses, ids, segment
/// names. Any thread. A value is written once; keys have the communicator's name and generation, so nothing is ever
/// overwritten.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Publishes `value`, at most a few KiB.
  virtual void put(const std::string& key, std::string value) = 0;
  /// Waits for `key`. Throws Error(timeout) naming the key after `timeout`, Error(aborted) once `abort` was called.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  /// Frees every waiter, now and later; the first reason wins.
  virtual void abort(const ErrorReport& reason) noexcept = 0;
  /// Throws Error(aborted) naming `operation` once `abort` was called. Set-up waits other than `get` call this again
  /// and again: the peer that they wait for may have left.
  virtual void throw_if_aborted(const std::string& operation) = 0;
};

/// A rendezvous of ranks that share a process.
class LocalRendezvous final : public Rendezvous {
 public:
  void put(const std::string& key, std::string value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  void abort(const ErrorReport& reason) noexcept override;
  void throw_if_aborted(const std::string& operation) override;

 private:
  void check(const std::string& operation) const;  // under mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::optional<ErrorReport> aborted_;
};

}  // namespace troupe
