#pragma once

namespace troupe {

/// Registers the strategies and communication hooks that ship with Troupe for make_strategy. A strategy that the
/// program has registered under a shipped name stays. troupe::main calls it; any thread, more than once.
void register_shipped_strategies();

}  // namespace troupe
