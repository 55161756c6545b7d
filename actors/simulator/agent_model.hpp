#pragma once
#include <caf/all.hpp>

#include <map>
#include <vector>

#include "actors/messages/messages.hpp"
#include "actors/simulator/world.hpp"

namespace troupe::simulator {

class Job;

/// The model of a host's NodeAgent and AgentLink: it starts and kills the host's ranks as the coordinator says, and
/// reports those that have ended or are to leave. While it knows no coordinator it keeps its reports.
class AgentModel {
 public:
  /// Starts its process and the host's ranks.
  AgentModel(Job& job, int host);
  Process& process() noexcept { return process_; }
  /// Takes RankExited of a child, and LeaveNotice of the host.
  const caf::actor& actor() const noexcept { return actor_; }
  /// Ends if it has nothing more to do. False: it goes on.
  bool end_if_idle();

 private:
  caf::behavior make_behavior(caf::event_based_actor* self);
  void look_for_coordinator();
  void join(const caf::strong_actor_ptr& coordinator);
  void exited(const RankExited& exit);
  void start_rank(const ProcessId& id);
  void tell(const caf::message& message);

  Job& job_;
  Process& process_;
  caf::actor actor_;
  caf::event_based_actor* self_ = nullptr;
  caf::strong_actor_ptr coordinator_;
  std::map<int, ProcessId> children_;   // by slot; also those about to start
  std::vector<caf::message> waiting_;   // for a coordinator
  std::map<int, LeaveNotice> leaving_;  // by slot
  bool over_ = false;                   // the job
  bool lost_ = false;                   // no coordinator was found in time
  bool failed_ = false;                 // one of the children
  Time last_exit_, end_by_{};
};

}  // namespace troupe::simulator
