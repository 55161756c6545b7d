#pragma once
#include <string>

#include "actors/rank/strategy_options.hpp"

namespace troupe {

/// For a strategy that keeps parameters whole and in their own dtype. Throws Error(usage) if the options ask for a
/// dtype that only shards have.
void refuse_sharded_dtypes(const StrategyOptions& options, const std::string& strategy);

}  // namespace troupe
