#include "actors/simulator/agent_model.hpp"

#include <utility>

#include "actors/simulator/job.hpp"

namespace troupe::simulator {

using namespace std::chrono_literals;

AgentModel::AgentModel(Job& job, int host)
    : job_(job), process_(job.world().start("agent " + std::to_string(host), host)), last_exit_(job.world().now()) {
  const auto& options = job.options();
  for (int slot = host; slot < options.ranks + options.spares; slot += options.hosts)
    start_rank({slot, job.draw_incarnation()});
  actor_ = job.world().spawn(
      process_, [this](caf::event_based_actor* self, NoArgument) { return make_behavior(self); }, NoArgument{});
}

caf::behavior AgentModel::make_behavior(caf::event_based_actor* self) {
  self_ = self;
  self->set_down_handler([this](caf::down_msg& down) {
    if (!coordinator_ || coordinator_->address() != down.source) return;
    coordinator_ = nullptr;
    look_for_coordinator();
  });
  look_for_coordinator();
  return {
      [this](const CoordinatorFound& found) {
        lost_ = !found.coordinator;
        if (!lost_) join(found.coordinator);
      },
      [this](const LeaveNotice& notice) {
        leaving_[notice.process.slot] = notice;
        if (coordinator_) tell(caf::make_message(notice));
      },
      [this](const RankExited& exit) { exited(exit); },
      [](const std::string&) {},
      [this](const StartRank& start) {
        if (!over_) start_rank(start.process);
      },
      [this](const KillRank& kill) {
        if (auto* rank = job_.living(kill.process)) job_.kill_rank(*rank);
      },
      [this](const JobOver& over) {
        over_ = true;
        job_.heard(over);
        if (over.exit_code != 0) end_by_ = job_.world().now() + 3s;
      },
  };
}

void AgentModel::look_for_coordinator() {
  job_.launcher().find_coordinator(
      process_, 60s, [this] { return !process_.alive; },
      [this](caf::strong_actor_ptr found) { caf::anon_send(actor_, CoordinatorFound{std::move(found)}); });
}

void AgentModel::join(const caf::strong_actor_ptr& coordinator) {
  coordinator_ = coordinator;
  self_->monitor(caf::actor_cast<caf::actor>(coordinator));
  JoinNode join{.job_id = job_.id(), .host = "host " + std::to_string(process_.host)};
  for (const auto& [slot, id] : children_) join.started.push_back(id);
  self_->send(caf::actor_cast<CoordinatorActor>(coordinator), join);
  for (const auto& message : std::exchange(waiting_, {})) tell(message);
  for (const auto& [slot, notice] : leaving_) tell(caf::make_message(notice));
}

void AgentModel::exited(const RankExited& exit) {
  const auto child = children_.find(exit.process.slot);
  if (child != children_.end() && child->second == exit.process) children_.erase(child);
  leaving_.erase(exit.process.slot);
  last_exit_ = job_.world().now();
  failed_ = failed_ || exit.wait_status != 0;
  tell(caf::make_message(exit));
}

void AgentModel::start_rank(const ProcessId& id) {
  children_[id.slot] = id;
  job_.start_rank(process_, id);
}

void AgentModel::tell(const caf::message& message) {
  if (!coordinator_) return waiting_.push_back(message);
  coordinator_->enqueue(caf::actor_cast<caf::strong_actor_ptr>(self_), caf::make_message_id(), message,
                        self_->context());
}

bool AgentModel::end_if_idle() {
  if (!process_.alive) return true;
  if (process_.frozen) return false;
  const auto now = job_.world().now();
  if (end_by_ != Time{} && now > end_by_) job_.kill_ranks_on(process_.host);
  if (!children_.empty() || (!over_ && !lost_ && now - last_exit_ <= (failed_ ? 10s : 300ms))) return false;
  job_.world().kill(process_);
  return true;
}

}  // namespace troupe::simulator
