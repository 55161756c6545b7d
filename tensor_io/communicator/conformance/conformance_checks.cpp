#include "tensor_io/communicator/conformance/conformance_checks.hpp"

namespace troupe::conformance {

const std::vector<ConformanceCheck>& conformance_checks() {
  static const std::vector<ConformanceCheck> checks{
      {"all_reduce", "every operation in every type and size", {1, 2, 3, 5, 8}, false, check_all_reduce},
      {"many_chunks", "each element is added once, wherever the tensor lies", {2, 3, 4}, false, check_many_chunks},
      {"all_reduce_update",
       "an update here of the average, on all ranks",
       {1, 2, 3, 5},
       false,
       check_all_reduce_update},
      {"mixed_memory", "memory from allocate() meets other memory", {3}, true, check_mixed_memory},
      {"reduce_scatter", "each rank gets its reduced slice", {1, 2, 3, 8}, false, check_reduce_scatter},
      {"reduce", "the root has the result, the others' tensors stay", {1, 2, 5}, false, check_reduce},
      {"gathers",
       "all_gather, gather, scatter, all_to_all and broadcast in every type and size",
       {1, 2, 3, 8},
       false,
       check_gathers},
      {"all_gather_into_allocated",
       "all_gather into memory from allocate()",
       {3},
       true,
       check_all_gather_into_allocated},
      {"send_recv", "between any two ranks, in order", {2, 3, 6}, false, check_send_recv},
      {"byte_strings", "of any length, by rank", {1, 2, 4}, false, check_byte_strings},
      {"sums", "the same bits on all ranks, each time, in rank order", {2, 3, 4}, false, check_sums},
      {"averages", "the average of 16-bit numbers whose sum is infinite", {2, 5}, false, check_averages},
      {"nan", "min and max keep a NaN", {3}, true, check_nan},
      {"split", "groups that work side by side, ordered by key", {1, 2, 5}, false, check_split},
      {"slow_group", "slow ranks hold up only their group", {4}, true, check_slow_group},
      {"allocate",
       "memory is zeroed, aligned, and outlives the communicator",
       {3},
       true,
       check_allocate,
       allocated_memory_stays},
      {"allocate_shared",
       "memory is one on all ranks, or undefined on all",
       {3},
       true,
       check_allocate_shared,
       shared_memory_stays},
      {"ledger", "what was done, with step and a shortened label", {2}, true, check_ledger},
      {"deadline",
       "a wait for a rank that stays away ends",
       {3},
       true,
       check_deadline,
       nullptr,
       std::chrono::milliseconds(500)},
      {"abort", "abort() ends the waits of all ranks", {3}, true, check_abort},
  };
  return checks;
}

}  // namespace troupe::conformance
