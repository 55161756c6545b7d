#include "actors/compute/early_update_rate.hpp"

#include <string>

#include "actors/strategy/early_updates.hpp"

namespace troupe {

void EarlyUpdateRate::check_options() const {
  if (!core_.options.strategy.early_update) return;
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::usage, "early_update", why, "leave one of them out");
  };
  if (core_.options.training.clip_norm > 0)
    refuse("clip_norm must know all of the gradient before any of it is applied");
  if (core_.loss_scaler.enabled()) refuse("the loss scaler must see all of the gradient before any of it is applied");
}

void EarlyUpdateRate::begin_update() {
  auto* early = core_.capability<EarlyUpdates>();
  if (early != nullptr && expected_ && early->begin_update(*expected_)) begun_ = expected_;
}

void EarlyUpdateRate::check(const Optimizer& optimizer, double lr) const {
  const bool other_optimizer = prepared_for_ != 0 && optimizer.id() != prepared_for_;
  if (!other_optimizer && (!begun_ || *begun_ == lr)) return;
  const std::string what = other_optimizer ? "a different optimizer" : "a different rate";
  core_.refuse("step",
               begun_ ? "backward has begun the update, but step was given " + what
                      : "it was given " + what + " than earlier steps",
               "give every step the same optimizer, or leave early_update out");
}

void EarlyUpdateRate::prepare(Optimizer& optimizer) {
  auto* early = core_.capability<EarlyUpdates>();
  if (early == nullptr) return;
  early->prepare_updates(optimizer);
  if (prepared_for_ == 0) prepared_for_ = optimizer.id();
}

}  // namespace troupe
