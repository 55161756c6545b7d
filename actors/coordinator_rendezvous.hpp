#pragma once
#include <caf/all.hpp>

#include <mutex>
#include <optional>

#include "actors/coordinator.hpp"
#include "tensor_io/rendezvous.hpp"

namespace troupe {

/// A rendezvous kept by the job's coordinator. Any thread; `get` polls, 1 ms at first and 20 ms in the end, since set-up is the only user.
class CoordinatorRendezvous final : public Rendezvous {
 public:
  CoordinatorRendezvous(caf::actor_system& system, CoordinatorActor coordinator) : system_(system), coordinator_(std::move(coordinator)) {}
  void put(const std::string& key, std::string value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  void abort(const ErrorReport& reason) noexcept override;

 private:
  caf::actor_system& system_;
  CoordinatorActor coordinator_;
  std::mutex mutex_;
  std::optional<ErrorReport> aborted_;
};

}  // namespace troupe
