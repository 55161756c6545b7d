#include "launch/testing/actor_alone.hpp"

#include <caf/scheduler/test_coordinator.hpp>

#include "launch/testing/network.hpp"

namespace troupe::testing {
namespace {

struct Config : caf::actor_system_config {
  Config() {
    set("scheduler.policy", caf::atom("testing"));
    set("logger.console", caf::atom("none"));
  }
};

}  // namespace

class ActorStage::State {
 public:
  State() : scheduler(dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler())) {
    while (scheduler.try_run_once()) {
    }
    began = scheduler.clock().current_time;
    system.await_actors_before_shutdown(false);  // one that it has made may live on
  }

  Config config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& scheduler;
  caf::actor_clock::time_point began;
  std::map<std::string, caf::strong_actor_ptr> peers;
  std::vector<SentToPeer> sent;
  std::optional<caf::message> answer;
  bool ended = false;
  std::string reason;
  std::uint64_t questions = 0, question = 0;  // how many, and the one that is waited for; 0: none
};

/// An address that writes down what is sent to it.
class ActorStage::Peer final : public caf::actor_proxy {
 public:
  Peer(caf::actor_config& config, ActorStage& stage, std::string name)
      : caf::actor_proxy(config), stage_(&stage), name_(std::move(name)) {}

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) override {
    auto content = what->move_content_to_message();
    auto& state = *stage_->state_;
    if (what->mid.is_response() && what->mid.request_id().integer_value() == state.question) {
      state.answer = std::move(content);
    } else {
      const auto type = type_of(content);
      state.sent.push_back({name_, type, stage_->time(), std::move(content)});
    }
  }
  void kill_proxy(caf::execution_unit* unit, caf::error reason) override { cleanup(std::move(reason), unit); }

 private:
  ActorStage* const stage_;
  const std::string name_;
};

ActorStage::ActorStage() : state_(std::make_unique<State>()) {}

// What is still delayed is not to come: a message of an actor to itself would come for ever.
ActorStage::~ActorStage() {
  state_->scheduler.clock().cancel_all();
  run();
  state_->scheduler.clock().cancel_all();
  state_->peers.clear();
}

caf::actor_system& ActorStage::system() noexcept { return state_->system; }

void ActorStage::watch(const caf::strong_actor_ptr& actor, std::function<std::string()> reason) {
  actor->get()->attach_functor([state = state_.get(), reason = std::move(reason)](const caf::error& error) {
    state->ended = true;
    state->reason = reason();
    if (state->reason.empty()) state->reason = state->system.render(error);
  });
}

caf::strong_actor_ptr ActorStage::peer(const std::string& name) {
  auto& known = state_->peers[name];
  if (!known) {
    caf::actor_config config;
    known = caf::make_actor<Peer, caf::strong_actor_ptr>(state_->system.next_actor_id(), state_->system.node(),
                                                         &state_->system, config, *this, name);
  }
  return known;
}

void ActorStage::run() {
  while (state_->scheduler.try_run_once()) {
  }
}

// One after the other: what one brings about comes before the next.
void ActorStage::advance(std::chrono::nanoseconds time) {
  auto& clock = state_->scheduler.clock();
  const auto until = clock.current_time + time;
  while (!clock.schedule().empty() && clock.schedule().begin()->first <= until) {
    clock.trigger_timeout();
    run();
  }
  clock.current_time = until;
}

std::chrono::nanoseconds ActorStage::time() const { return state_->scheduler.clock().current_time - state_->began; }
const std::vector<SentToPeer>& ActorStage::sent() const noexcept { return state_->sent; }
bool ActorStage::ended() const noexcept { return state_->ended; }
const std::string& ActorStage::reason() const noexcept { return state_->reason; }

caf::message ActorStage::ask(const caf::strong_actor_ptr& actor, caf::message question) {
  auto& state = *state_;
  const auto type = type_of(question);
  state.answer.reset();
  state.question = ++state.questions;
  actor->enqueue(peer("test"), caf::make_message_id(state.question), std::move(question), nullptr);
  run();
  state.question = 0;  // a later answer is one of the messages that it sends
  const bool failed = state.answer && state.answer->match_elements<caf::error>();
  if ((failed || !state.answer) && ended()) throw Error(ErrorCode::user, type, "the actor has ended: " + reason());
  if (failed) throw Error(ErrorCode::user, type, state.system.render(state.answer->get_as<caf::error>(0)));
  if (!state.answer) throw Error(ErrorCode::timeout, type, "the actor has not answered");
  return *std::exchange(state.answer, std::nullopt);
}

void ActorStage::send(const caf::strong_actor_ptr& actor, caf::message content, const std::string& from) {
  actor->enqueue(peer(from), caf::make_message_id(), std::move(content), nullptr);
  run();
}

}  // namespace troupe::testing
