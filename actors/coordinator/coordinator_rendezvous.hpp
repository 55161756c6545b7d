#pragma once
#include <caf/all.hpp>

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "actors/coordinator/coordinator.hpp"
#include "tensor_io/communicator/rendezvous.hpp"

namespace troupe {

/// The job's coordinator as a rank knows it now; a restarted one takes the place of the old. Any thread.
class CoordinatorLink {
 public:
  explicit CoordinatorLink(CoordinatorActor coordinator) : coordinator_(std::move(coordinator)) {}
  CoordinatorActor get() const {
    std::lock_guard lock(mutex_);
    return coordinator_;
  }
  void set(CoordinatorActor coordinator) {
    std::lock_guard lock(mutex_);
    coordinator_ = std::move(coordinator);
    ++joins_;
  }
  /// How often this rank has joined again: its earlier messages may be lost.
  std::uint64_t joins() const {
    std::lock_guard lock(mutex_);
    return joins_;
  }

 private:
  mutable std::mutex mutex_;
  CoordinatorActor coordinator_;
  std::uint64_t joins_ = 0;
};

/// A generation's rendezvous, kept by the job's coordinator. Any thread; `get` polls, 1 ms at first and 20 ms in the
/// end, since set-up is the only user.
class CoordinatorRendezvous final : public Rendezvous {
 public:
  /// Values are left in the name of `supervisor`.
  CoordinatorRendezvous(caf::actor_system& system, std::shared_ptr<CoordinatorLink> link,
                        RankSupervisorActor supervisor, std::uint64_t generation)
      : system_(system),
        link_(std::move(link)),
        supervisor_(std::move(supervisor)),
        prefix_("g" + std::to_string(generation) + "/") {}
  void put(const std::string& key, std::string value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  void abort(const ErrorReport& reason) noexcept override;
  void throw_if_aborted(const std::string& operation) override;

 private:
  caf::actor_system& system_;
  void tell(const std::string& key, const std::string& value) const;

  std::shared_ptr<CoordinatorLink> link_;
  RankSupervisorActor supervisor_;
  std::string prefix_;
  std::mutex mutex_;
  std::optional<ErrorReport> aborted_;
  std::uint64_t told_ = 0;                   // since that join ...
  std::map<std::string, std::string> mine_;  // ... the coordinator knows these; a restarted one knows nothing
};

}  // namespace troupe
