// Compute where the strategy makes a step's update during backward (early_update).
#include "actors/compute/compute.hpp"

#include "actors/strategy/early_updates.hpp"

namespace troupe {

void Compute::check_early_update() const {
  if (!options_.strategy.early_update) return;
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::usage, "early_update", why, "leave one of them out");
  };
  if (options_.training.clip_norm > 0) refuse("clip_norm must know all of the gradient before any of it is applied");
  if (loss_scaler_.enabled()) refuse("the loss scaler must see all of the gradient before any of it is applied");
}

// Not in a step that compares the replicas: whoever differs is healed before the update.
void Compute::begin_update() {
  auto* early = capability<EarlyUpdates>();
  if (early != nullptr && expected_rate_ && !verifies_now() && early->begin_update(*expected_rate_))
    begun_rate_ = expected_rate_;
}

void Compute::check_begun_update(const Optimizer& optimizer, double lr) const {
  const bool other_optimizer = prepared_for_ != nullptr && &optimizer != prepared_for_;
  if (!other_optimizer && (!begun_rate_ || *begun_rate_ == lr)) return;
  const std::string what = other_optimizer ? "another optimizer" : "another rate";
  throw Error(complete({ErrorCode::usage,
                        -1,
                        {},
                        -1,
                        "step",
                        begun_rate_ ? "its update was begun in backward, and step was given " + what
                                    : "it was given " + what + " than the steps before",
                        "give every step the same optimizer, or leave early_update out"}));
}

}  // namespace troupe
