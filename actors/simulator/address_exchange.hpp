#pragma once
#include <caf/all.hpp>

#include <functional>
#include <string>

#include "actors/messages/membership.hpp"
#include "actors/simulator/rank_process.hpp"
#include "actors/simulator/wait_point.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe::simulator {

class Job;

/// The way of a rank to data connections with all others of a generation: it puts its address at the coordinator, asks
/// for those of the others as CoordinatorRendezvous::get does, and connects, one peer after the other. On the rank's
/// actor.
class AddressExchange {
 public:
  using Failed = std::function<void(ErrorCode, const std::string& operation, const std::string& cause)>;
  AddressExchange(caf::event_based_actor* self, Job& job, RankProcess& process, WaitPoint& waits)
      : self_(self), job_(job), process_(process), waits_(waits) {}
  /// Calls `done` when all are connected, or `failed`; neither if the wait is given up.
  void begin(const Membership& membership, int rank, std::function<void()> done, Failed failed);
  bool under_way() const;

 private:
  std::string key(int rank) const;
  void wait();
  void put_address();
  void ask(int peer, milliseconds pause);
  void ask_again(int peer, milliseconds pause);
  void connect(int peer, milliseconds pause);

  caf::event_based_actor* self_;
  Job& job_;
  RankProcess& process_;
  WaitPoint& waits_;
  Membership membership_;
  int rank_ = 0;
  std::function<void()> done_;
  Failed failed_;
  Time ends_{};                 // no address is asked for after that
  caf::strong_actor_ptr told_;  // the coordinator that has this rank's address
};

}  // namespace troupe::simulator
