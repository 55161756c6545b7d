#pragma once
// A strategy of one's own: gossip averaging. Every rank trains a copy of the model and averages it with one other
// rank's after each step, another one each time, while the next step's forward and backward go on (Lian et al.,
// "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018; here the pairs are fixed by the step,
// so that nobody waits in a circle). docs/strategies.md walks through it.
#include <troupe/troupe.hpp>

// What the compute thread asks of the strategy's actor, and the answer. They stay in the process: tensors go by
// reference.
struct Exchange {
  std::shared_ptr<troupe::Communicator> communicator;
  at::Tensor mine, theirs;  // (numel,)
  int partner = 0;
};
struct Exchanged {};
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Exchange)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Exchanged)

// The actor, on a thread of its own. What the communicator throws, when a rank is lost say, ends it, and reaches the
// strategy.
using GossipActor = caf::typed_actor<caf::replies_to<Exchange>::with<Exchanged>>;

inline GossipActor::behavior_type gossip_behavior(GossipActor::pointer) {
  return {[](const Exchange& exchange) {
    const auto& [communicator, mine, theirs, partner] = exchange;
    const bool sends_first = communicator->rank() < partner;  // send waits for recv: one of the two has to begin
    if (sends_first) communicator->send(mine, partner, "gossip");
    communicator->recv(theirs, partner, "gossip");
    if (!sends_first) communicator->send(mine, partner, "gossip");
    return Exchanged{};
  }};
}

// Who meets whom: neighbours in the ring of ranks, now the one to the right, now the one to the left. Nobody: oneself.
inline int gossip_partner(int rank, int world_size, std::int64_t step) {
  const bool begins_pair = (rank + step) % 2 == 0;
  const int partner = (rank + (begins_pair ? 1 : world_size - 1)) % world_size;
  const bool closes_ring = std::abs(rank - partner) != 1;
  return closes_ring && world_size % 2 == 1 ? rank : partner;  // an odd ring has one too many
}

class Gossip : public troupe::ReplicatedStrategy {
 public:
  using ReplicatedStrategy::ReplicatedStrategy;
  bool replicas_equal() const override { return false; }

 protected:
  // New communicators: what was under way is gone, and the actor with it.
  void joined() override {
    actor_.reset();
    communicator_ = context().make_communicator("gossip");
    actor_ = std::make_unique<troupe::OwnActor<GossipActor>>(context(), "gossip", gossip_behavior);
    under_way_ = false;
    after_join_ = true;
  }

  // Before the vote: if the partner is lost, the step comes again.
  void combine_gradients(troupe::GradientSummary&) override {
    if (under_way_) actor_->receive<Exchanged>("exchange of parameters");
    arrived_ = std::exchange(under_way_, false);
    after_join_ = false;
  }

  // After the optimizer: half of the way to what the partner was a step ago, as it goes half of the way to this rank,
  // so that the ranks' mean stays where it is.
  void after_update() override {
    torch::NoGradGuard no_grad;
    if (std::exchange(arrived_, false)) {
      const auto pull = (theirs_ - mine_).mul_(0.5);
      std::int64_t offset = 0;
      for (const auto& [name, parameter] : exchanged_) {
        if (parameter.requires_grad())
          parameter.detach().add_(pull.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
        offset += parameter.numel();
      }
    }
    // Of a step that ends in a new generation the others may have been here before it began: they send nothing more.
    if (after_join_) return;
    const int partner = gossip_partner(context().rank, context().world_size, step());
    if (partner == context().rank) return;
    std::vector<at::Tensor> flat;
    exchanged_ = parameters();
    for (const auto& [name, parameter] : exchanged_) flat.push_back(parameter.detach().reshape(-1));
    mine_ = at::cat(flat);
    theirs_ = at::empty_like(mine_);
    actor_->send(Exchange{communicator_, mine_, theirs_, partner});
    under_way_ = true;
  }

 private:
  std::shared_ptr<troupe::Communicator> communicator_;  // the actor's
  std::unique_ptr<troupe::OwnActor<GossipActor>> actor_;
  troupe::NamedTensors exchanged_;  // parameters, as they were laid out then
  at::Tensor mine_, theirs_;        // (numel,), the actor's while an exchange is under way
  bool under_way_ = false, arrived_ = false;
  bool after_join_ = false;  // no gradients have been combined in this generation
};

inline void register_gossip() {
  troupe::register_strategy(
      "gossip", "every rank averages its copy of the model with one other rank's after each step",
      [](troupe::StrategyContext context) { return std::make_unique<Gossip>(std::move(context)); });
}
