#pragma once
#include <set>
#include <string>

#include "launch/config/config.hpp"

namespace troupe {

/// The settings that nothing reads beside the others: `outer_lr` with strategy ddp, `eps` with sgd.
/// Strategies that are not Troupe's own may read any of a strategy.
std::set<std::string> unread_settings(const Config& config);

/// Throws Error(usage) for such a setting that a flag or the file gives. Passed over: one of
/// Config::as_begun; one that is off; a file's whose reader a flag has put out; and one of the environment, which is
/// for all programs.
void refuse_unread(const Config& config);
/// The same for what the optimizer of the settings does not read: `beta1` with sgd. Called when Troupe makes that
/// optimizer, since a program's own may read any.
void refuse_unread_by_optimizer(const Config& config);

}  // namespace troupe
