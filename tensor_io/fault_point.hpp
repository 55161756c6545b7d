#pragma once
#include <cstdint>

namespace troupe {

/// A place where a test may hurt this process. TROUPE_FAULT=`slot=1,step=5,at=vote,signal=9` sends the signal to the process when slot 1
/// comes by `vote` in step 5, in the slot's first life (`life=1`: in its second); several are separated by semicolons. Without the variable
/// it costs a load and a branch. Any thread.
///
/// Places: data, forward, backward, buckets, collective, reduced, vote, voted, committed, optimizer, save, heal; of `slot=coordinator`,
/// with the generation as step (0: its own start): journal, journalled.
void fault_point(const char* place, std::int64_t step) noexcept;

}  // namespace troupe
