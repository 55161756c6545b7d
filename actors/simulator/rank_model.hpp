#pragma once
#include <caf/all.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/coordinator/coordinator.hpp"
#include "actors/simulator/address_exchange.hpp"
#include "actors/simulator/data_connections.hpp"
#include "actors/simulator/history.hpp"
#include "actors/simulator/model_collectives.hpp"
#include "actors/simulator/rank_process.hpp"
#include "actors/simulator/rank_saves.hpp"
#include "actors/simulator/wait_point.hpp"
#include "actors/simulator/world.hpp"
#include "actors/step/step_protocol.hpp"
#include "actors/step/vote.hpp"

namespace troupe::simulator {

class Job;

/// The supervisor has aborted the generation's communicators.
struct CommunicatorsAborted {
  std::uint64_t generation = 0;
  ErrorReport reason;
};

/// The model of Compute: a loop of steps (forward, reduce, vote, commit), saves between them, and the way from one
/// generation to the next, with numbers in place of tensors. It follows the same StepProtocol as Compute, and decides
/// votes and heals with the same functions. Unlike Compute it never blocks: it has a continuation at each point at
/// which Compute waits.
class RankModel {
 public:
  RankModel(caf::event_based_actor* self, Job& job, RankProcess& process);
  caf::behavior make_behavior();
  void begin(caf::actor checkpointer);
  int rank() const noexcept { return protocol_.rank(); }
  std::int64_t steps_done() const noexcept { return protocol_.steps_done(); }
  const WaitPoint& waits() const noexcept { return waits_; }
  // Mistakes of the user's program, in this step: it leaves out the first of its two collectives, or has a bucket of
  // another length.
  std::int64_t skip_at = -1, other_numel_at = -1;

 private:
  using Pieces = ModelCollectives::Pieces;
  void ask_to_join();
  void await_membership();
  bool awaits_membership() const;
  void take_next();
  void enter(const Membership& next);
  std::function<void(const ErrorReport&)> message_of_abort() const;
  void connected();
  void heal();
  void go_on();
  void resume();
  void save(std::function<void()> then);
  void after_save(std::function<void()> then);
  void finish();
  void step();
  void reduce();
  void reduced(const Pieces& pieces);
  void settle_optimizer(std::function<void()> then);
  void vote();
  void commit();
  void part(const std::vector<int>& leaving);
  void leave(const ErrorReport& why);
  void aborted(const AbortJob& job);
  void end(const ErrorReport& report);
  void collective(std::size_t communicator, const std::string& label, std::string bytes,
                  std::function<void(const Pieces&)> then);
  void lost_peer(const PeerGone& gone);
  void complete_if_all();
  bool is_here(const char* point);
  void give_up_waiting();
  std::string encoded_state() const;
  ErrorReport report(ErrorCode code, std::string operation = {}, std::string cause = {}) const;

  caf::event_based_actor* self_;
  Job& job_;
  RankProcess& process_;
  caf::actor checkpointer_;
  Draw draw_;

  ModelState state_;
  Membership membership_;
  StepProtocol protocol_;
  std::vector<Slice> slices_;  // of the step that was reduced last
  bool resumed_ = false, ending_ = false;
  std::deque<Membership> memberships_;  // that came before the rank waited for them
  std::optional<AbortJob> abort_;

  WaitPoint waits_;
  AddressExchange addresses_;
  ModelCollectives collectives_;
  RankSaves saves_;
};

}  // namespace troupe::simulator

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::simulator::CommunicatorsAborted)
