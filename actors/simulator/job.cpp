#include "actors/simulator/job.hpp"

#include <signal.h>

#include <algorithm>

#include "actors/simulator/checkpointer_model.hpp"

namespace troupe::simulator {

using namespace std::chrono_literals;

namespace {

constexpr auto kGiveUp = 600s;  // without faults, for the job to end
constexpr int kMostStarts = 12;

template <class... Kinds>
bool is_any_of(const caf::message& message) {
  return (message.match_elements<Kinds>() || ...);
}

}  // namespace

Job::Job(JobOptions options) : options_(std::move(options)), world_(options_.seed), draw_(options_.seed, "job") {
  world_.keep_lines = options_.keep_log;
  for (const auto& fault : options_.faults) {
    if (fault.kind == FaultKind::kill_rank_at || fault.kind == FaultKind::break_data_at) {
      at_points_.push_back(fault);
    } else if (fault.kind == FaultKind::kill_at_journal) {
      launcher_.kill_at_journal(fault);
    } else {
      note_fault(fault.at + fault.lasts);
      world_.after(fault.at, [this, fault] { inflict(fault); });
    }
  }
  note_fault();
  // All that say of which generation or process they are.
  world_.may_repeat = [](const caf::message& message) {
    return is_any_of<Heartbeat, RankInterrupted, CollectiveState, PartSaved, Membership, InterruptRanks, FenceRank,
                     SaveEnded, CoordinatorBeat, LoopDone, LeaveLoop>(message);
  };
  start_job();
}

Job::~Job() { world_.end(); }

void Job::run() {
  while (step()) {
  }
}

bool Job::step() {
  if (done_ || history_.violation()) return false;
  if (!world_.step()) history_.broken("I6", "nothing is left to happen, and the job is not done");
  if (world_.now() > calm_from_ + kGiveUp) {
    std::string waits;
    for (const auto& rank : ranks_) {
      if (rank->process->alive && rank->model)
        waits += "; " + rank->process->name + " at step " + std::to_string(rank->model->steps_done()) + " waits for " +
                 (rank->model->waits().what().empty() ? "nothing" : rank->model->waits().what());
    }
    history_.broken("I6", "the faults are over and the job does not come to its end" + waits);
  }
  return !done_ && !history_.violation();
}

// ---------------------------------------------------------------- the job's start and end

void Job::start_job() {
  ++starts_;
  history_.began_anew();
  verdict_.reset();
  launcher_.begin_job();
  for (int host = 0; host < options_.hosts; ++host) agents_.push_back(std::make_unique<AgentModel>(*this, host));
  look_at_agents();
}

void Job::heard(const JobOver& over) {
  if (!verdict_ || over.exit_code != 0) verdict_ = over;
}

void Job::end_of_start() {
  for (auto& rank : ranks_) {
    if (rank->process->alive) world_.kill(*rank->process);
  }
  for (auto& agent : agents_) world_.kill(agent->process());
  launcher_.end_coordinator();
  const auto* over = &launcher_.coordinator();
  const auto code = verdict_ ? verdict_->report.code : ErrorCode::parked;
  world_.log("start " + std::to_string(starts_) +
             " of the job ended: " + (verdict_ ? verdict_->report.to_string() : "no word from the coordinator"));
  if (verdict_ && verdict_->exit_code == 0) {
    if (history_.furthest() < options_.steps) history_.broken("I6", "the job ended well before its last step");
    done_ = true;
    return;
  }
  using enum ErrorCode;
  if (code != parked && code != state_lost && code != peer_lost && code != aborted && code != timeout &&
      !(code == unavailable && !launcher_.has_journal()))
    return history_.broken("I6", "the job ended: " + verdict_->report.to_string());
  if (starts_ >= kMostStarts) return history_.broken("I6", "the job was started " + std::to_string(starts_) + " times");
  world_.after(1s, [this, over] {
    if (&launcher_.coordinator() == over) start_job();
  });
}

// ---------------------------------------------------------------- agents

// When all have ended, this start of the job is over.
void Job::look_at_agents() {
  if (done_ || history_.violation()) return;
  const int start = starts_;
  bool all_over = true;
  for (auto& agent : agents_) all_over = agent->end_if_idle() && all_over;
  check();
  if (all_over) {
    end_of_start();
    std::move(agents_.begin(), agents_.end(), std::back_inserter(former_agents_));
    agents_.clear();
  }
  world_.after(100ms, [this, start] {
    if (start == starts_ || agents_.empty()) look_at_agents();
  });
}

// ---------------------------------------------------------------- ranks

void Job::start_rank(const Process& agent, const ProcessId& id) {
  const milliseconds time_to_start(draw_.in(20, 400));
  world_.after(time_to_start, [this, &agent, id, start = starts_] {
    if (start != starts_ || !agent.alive) return;
    auto& rank = *ranks_.emplace_back(std::make_unique<RankProcess>());
    rank.process = &world_.start("rank " + std::to_string(id.slot), agent.host);
    rank.id = id;
    auto* const process = rank.process;
    launcher_.find_coordinator(
        *process, 60s, [process] { return !process->alive; },
        [this, &rank](caf::strong_actor_ptr found) {
          if (!found) return exit_rank(rank, 69);
          rank.coordinator = std::move(found);
          join_rank(rank);
        });
  });
}

void Job::join_rank(RankProcess& rank) {
  RankSupervisorOptions options;
  options.join.job_id = id();
  options.join.process = rank.id;
  options.join.world_size = options_.ranks;
  options.join.host = "host " + std::to_string(rank.process->host);
  options.join.spare = rank.id.slot >= options_.ranks;
  options.coordinator = rank.coordinator;
  options.status = rank.status;
  options.reconnect = [](auto, const auto&) { return caf::strong_actor_ptr(); };
  options.find_coordinator = [this, &rank](const RankSupervisorActor& supervisor, milliseconds patience) {
    launcher_.find_coordinator(
        *rank.process, patience, [&rank] { return rank.status->job_over.load(); },
        [supervisor](caf::strong_actor_ptr found) { caf::anon_send(supervisor, CoordinatorFound{std::move(found)}); });
  };
  options.on_coordinator = [&rank](const caf::strong_actor_ptr& found) { rank.coordinator = found; };
  rank.compute = world_.spawn(
      *rank.process,
      [this, &rank, options](caf::event_based_actor* self, NoArgument) mutable -> caf::behavior {
        if (!rank.process->alive) return {[](bool) {}};
        rank.model = std::make_unique<RankModel>(self, *this, rank);
        options.compute = caf::actor_cast<caf::actor>(self);
        rank.supervisor = world_.spawn(
            *rank.process,
            [&rank, options](RankSupervisorActor::stateful_pointer<RankSupervisorState> supervisor, NoArgument) {
              rank.supervisor_state = &supervisor->state;
              return rank_supervisor(supervisor, options);
            },
            NoArgument{});
        auto checkpointer = world_.spawn(*rank.process, checkpointer_model, this, &rank);
        rank.model->begin(caf::actor_cast<caf::actor>(checkpointer));
        return rank.model->make_behavior();
      },
      NoArgument{});
}

RankProcess* Job::living(int slot) {
  for (auto rank = ranks_.rbegin(); rank != ranks_.rend(); ++rank) {
    if ((*rank)->id.slot == slot && (*rank)->process->alive) return rank->get();
  }
  return nullptr;
}

RankProcess* Job::living(const ProcessId& id) {
  auto* rank = living(id.slot);
  return rank && rank->id == id ? rank : nullptr;
}

std::int64_t Job::stale_at_ranks() const {
  std::int64_t stale = 0;
  for (const auto& rank : ranks_) {
    if (rank->process->alive && rank->supervisor_state != nullptr) stale += rank->supervisor_state->stale;
  }
  return stale;
}

RankModel* Job::rank_in(int slot) noexcept {
  auto* rank = living(slot);
  return rank ? rank->model.get() : nullptr;
}

void Job::exit_rank(RankProcess& rank, int code) {
  if (!rank.process->alive) return;
  world_.log(rank.process->name + " ends with exit code " + std::to_string(code));
  world_.kill(*rank.process);
  rank_ended(rank, code << 8);
}

void Job::kill_rank(RankProcess& rank) {
  if (!rank.process->alive) return;
  note_fault();
  world_.kill(*rank.process);
  rank_ended(rank, SIGKILL);
}

void Job::kill_ranks_on(int host) {
  for (auto& rank : ranks_) {
    if (rank->process->host == host) kill_rank(*rank);
  }
}

// waitpid, of its agent if that lives.
void Job::rank_ended(RankProcess& rank, int wait_status) {
  auto* agent = agent_of(rank.process->host);
  if (agent == nullptr) return;
  world_.after(std::chrono::microseconds(draw_.in(100, 20'000)), [agent, exit = RankExited{rank.id, wait_status}] {
    if (agent->process().alive) caf::anon_send(agent->actor(), exit);
  });
}

AgentModel* Job::agent_of(int host) {
  const auto found = std::find_if(agents_.begin(), agents_.end(), [host](const auto& agent) {
    return agent->process().host == host && agent->process().alive;
  });
  return found == agents_.end() ? nullptr : found->get();
}

bool Job::comes_to(RankProcess& rank, const char* point, std::int64_t step) {
  if (!rank.process->alive) return false;
  for (auto at = at_points_.begin(); at != at_points_.end();) {
    if (at->target != rank.id.slot || at->point != point || step < at->step) {
      ++at;
      continue;
    }
    const auto fault = *at;
    at = at_points_.erase(at);
    world_.log("fault: " + fault.to_string() + ": it comes there at step " + std::to_string(step));
    if (fault.kind == FaultKind::kill_rank_at) {
      kill_rank(rank);
      return false;
    }
    world_.after(std::chrono::microseconds(draw_.in(0, 20'000)), [this, fault] { inflict(fault); });
  }
  return true;
}

}  // namespace troupe::simulator
