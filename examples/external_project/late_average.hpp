#pragma once
// A strategy that the tests train with: every rank trains a copy of the model, and an actor averages the copies over
// all ranks while the next step's forward and backward go on.
#include <troupe/troupe.hpp>

struct Average {
  std::shared_ptr<troupe::Communicator> communicator;
  at::Tensor copy;  // (numel,), averaged in place
};
struct Averaged {};
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Average)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Averaged)

using AverageActor = caf::typed_actor<caf::replies_to<Average>::with<Averaged>>;

inline AverageActor::behavior_type average_behavior(AverageActor::pointer) {
  return {[](const Average& average) {
    average.communicator->all_reduce(average.copy, troupe::ReduceOp::avg, "late average");
    return Averaged{};
  }};
}

/// `forgets`: the mistake that lost_message_test.cpp looks for. Where a rank is lost, the ranks that go on begin anew
/// with another actor, and the answer of the old one never comes: a strategy that still waits for it waits in vain.
class LateAverage : public troupe::ReplicatedStrategy {
 public:
  LateAverage(troupe::StrategyContext context, bool forgets)
      : ReplicatedStrategy(std::move(context)), forgets_(forgets) {}
  bool replicas_equal() const override { return false; }

 protected:
  void joined() override {
    actor_.reset();
    communicator_ = context().make_communicator("late average");
    actor_ = std::make_unique<troupe::OwnActor<AverageActor>>(context(), "late average", average_behavior);
    if (!forgets_) under_way_ = false;
    after_join_ = true;
  }

  void combine_gradients(troupe::GradientSummary&) override {
    if (under_way_) actor_->receive<Averaged>("the late average");
    arrived_ = std::exchange(under_way_, false);
    after_join_ = false;
  }

  // By as much as the average of a step ago was away from this rank's copy of then.
  void after_update() override {
    torch::NoGradGuard no_grad;
    const auto named = parameters();
    if (std::exchange(arrived_, false)) {
      std::int64_t offset = 0;
      for (const auto& [name, parameter] : named) {
        const auto numel = parameter.numel();
        parameter.detach().add_((average_ - mine_).narrow(0, offset, numel).view(parameter.sizes()));
        offset += numel;
      }
    }
    if (after_join_) return;  // the others may have been here before this generation began
    std::vector<at::Tensor> flat;
    for (const auto& [name, parameter] : named) flat.push_back(parameter.detach().reshape(-1));
    mine_ = at::cat(flat);
    average_ = mine_.clone();
    actor_->send(Average{communicator_, average_});
    under_way_ = true;
  }

 private:
  const bool forgets_;
  std::shared_ptr<troupe::Communicator> communicator_;  // the actor's
  std::unique_ptr<troupe::OwnActor<AverageActor>> actor_;
  at::Tensor mine_, average_;  // (numel,); average_ is the actor's while it is under way
  bool under_way_ = false, arrived_ = false;
  bool after_join_ = false;
};

inline void register_late_average() {
  for (const bool forgets : {false, true}) {
    troupe::register_strategy(forgets ? "late_average_that_forgets" : "late_average",
                              "copies are averaged while the next step goes on",
                              [forgets](troupe::StrategyContext context) {
                                return std::make_unique<LateAverage>(std::move(context), forgets);
                              });
  }
}
