#include "launch/network/agent_link.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "launch/network/actor_system.hpp"

namespace troupe {

struct AgentLink::Shared {
  Options options;
  std::mutex mutex;
  std::vector<Command> commands;
  std::vector<ProcessId> running;
  std::string leaves;  // why
  std::shared_ptr<std::atomic<bool>> ending = std::make_shared<std::atomic<bool>>(false);
  bool lost = false;
  int wake = -1;
  // Declared last but one and last, so that the actors end while the rest is still there.
  std::unique_ptr<ActorSystemConfig> config;
  std::unique_ptr<caf::actor_system> system;
  caf::actor agent;

  void push(Command command) {
    {
      std::lock_guard lock(mutex);
      commands.push_back(std::move(command));
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake, &one, sizeof one);
  }
};

namespace {

struct LinkFound {
  caf::strong_actor_ptr coordinator;
};
struct TellLeave {};
}  // namespace
}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::LinkFound)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::TellLeave)

namespace troupe {
namespace {

struct LinkState {
  caf::strong_actor_ptr coordinator;
  std::vector<RankExited> waiting;
};

void search_coordinator(caf::stateful_actor<LinkState>* self, const AgentLink::Options& options,
                        std::shared_ptr<std::atomic<bool>> ending) {
  auto find = [options, ending = std::move(ending)](caf::event_based_actor* finder, const caf::actor& address) {
    const auto stopped = [&] { return ending->load(); };
    caf::anon_send(address, LinkFound{find_coordinator(finder->home_system(), options.coordinator_host,
                                                       options.coordinator_port, options.patience, stopped)});
  };
  // An argument each time an actor is made: CAF 0.17 dereferences a null pointer where there is none.
  self->home_system().spawn<caf::detached>(std::move(find), caf::actor_cast<caf::actor>(self));
}

void report(caf::stateful_actor<LinkState>* self, const RankExited& exit) {
  if (!self->state.coordinator) return self->state.waiting.push_back(exit);
  self->send(caf::actor_cast<CoordinatorActor>(self->state.coordinator), exit);
}

template <class SharedPtr>
void tell_leave(caf::stateful_actor<LinkState>* self, SharedPtr shared) {
  if (!self->state.coordinator) return;  // it hears of it when it is found
  std::lock_guard lock(shared->mutex);
  for (const auto& process : shared->running) {
    if (!shared->leaves.empty())
      self->send(caf::actor_cast<CoordinatorActor>(self->state.coordinator), LeaveNotice{process, shared->leaves});
  }
}

template <class SharedPtr>
caf::behavior link_actor(caf::stateful_actor<LinkState>* self, SharedPtr shared) {
  self->set_down_handler([self, shared](caf::down_msg&) {
    self->state.coordinator = nullptr;
    search_coordinator(self, shared->options, shared->ending);
  });
  search_coordinator(self, shared->options, shared->ending);
  return {
      [self, shared](const LinkFound& found) {
        if (!found.coordinator) {
          std::lock_guard lock(shared->mutex);
          shared->lost = true;
          return;
        }
        self->state.coordinator = found.coordinator;
        self->monitor(caf::actor_cast<caf::actor>(found.coordinator));
        JoinNode join{.job_id = shared->options.job_id, .host = shared->options.host};
        {
          std::lock_guard lock(shared->mutex);
          join.started = shared->running;
        }
        self->send(caf::actor_cast<CoordinatorActor>(found.coordinator), join);
        for (const auto& exit : std::exchange(self->state.waiting, {})) report(self, exit);
        tell_leave(self, shared);
      },
      [self](const RankExited& exit) { report(self, exit); },
      [self, shared](TellLeave) { tell_leave(self, shared); },
      [shared](const std::string& why) {
        if (why.empty()) return;
        shared->push(JobOver{{.code = ErrorCode::unavailable, .operation = "join", .cause = why}, 69});
      },
      [shared](const StartRank& command) { shared->push(command); },
      [shared](const KillRank& command) { shared->push(command); },
      [shared](const JobOver& command) { shared->push(command); },
  };
}

}  // namespace

std::optional<ErrorReport> lost_state(const std::optional<JobOver>& over, int stop_signal) {
  if (!over || over->report.code != ErrorCode::state_lost || stop_signal != 0) return std::nullopt;
  return over->report;
}

AgentLink::AgentLink(Options options, std::vector<ProcessId> started)
    : shared_(std::make_shared<Shared>()), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_ < 0) throw Error(ErrorCode::unavailable, "eventfd", std::strerror(errno));
  shared_->options = std::move(options);
  shared_->running = std::move(started);
  shared_->wake = wake_;
  shared_->config = std::make_unique<ActorSystemConfig>(true, shared_->options.keys);
  shared_->system = std::make_unique<caf::actor_system>(*shared_->config);
  // The actor must not keep what holds its own system.
  struct Weak {
    Shared* operator->() const { return shared; }
    Shared* shared;
  };
  shared_->agent = shared_->system->spawn(
      [](caf::stateful_actor<LinkState>* self, Weak shared) { return link_actor(self, shared); }, Weak{shared_.get()});
}

AgentLink::~AgentLink() {
  *shared_->ending = true;
  caf::anon_send_exit(shared_->agent, caf::exit_reason::kill);
  shared_->agent = {};
  shared_->system.reset();
  ::close(wake_);
}

std::vector<AgentLink::Command> AgentLink::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto read = ::read(wake_, &count, sizeof count);
  std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->commands, {});
}

void AgentLink::running(std::vector<ProcessId> processes) {
  std::lock_guard lock(shared_->mutex);
  shared_->running = std::move(processes);
}

void AgentLink::exited(const ProcessId& process, int wait_status) {
  caf::anon_send(shared_->agent, RankExited{process, wait_status});
}

void AgentLink::leave(const std::string& why) {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->leaves = why;
  }
  caf::anon_send(shared_->agent, TellLeave{});
}

bool AgentLink::lost() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->lost;
}

}  // namespace troupe
