#pragma once

namespace troupe {

/// Makes the strategies and communication hooks that ship known to make_strategy. A strategy that the program has
/// registered under the name of one that ships stays. troupe::main calls it; any thread, more than once.
void register_shipped_strategies();

}  // namespace troupe
