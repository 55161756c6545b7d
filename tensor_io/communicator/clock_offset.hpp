#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// One question and its answer: rank 0's steady clock before and after, the other rank's in between.
struct ClockSample {
  std::int64_t asked_ns = 0, answered_ns = 0, remote_ns = 0;
};

/// What to add to a rank's steady clock to have rank 0's. Ranks of one host share a clock; those of two began to count
/// at other times.
struct ClockOffset {
  std::int64_t offset_ns = 0;
  std::int64_t error_ns = 0;  ///< the truth is no farther away than this
};

/// As NTP has it (Mills, RFC 5905): of the samples the one with the shortest way, which was halfway when the answer was
/// given; wrong by half that way at most. `same_host`: the clocks are one where the samples do not say otherwise. Pure.
ClockOffset offset_of(const std::vector<ClockSample>& samples, bool same_host);

/// Collective: rank 0 asks every rank eight times, one after the other, over send and recv. By rank of the group, on
/// all ranks. `same_host` says of a rank whether it is on rank 0's host; `clock` stands in for the steady clock in
/// tests. Throws what the communicator throws.
std::vector<ClockOffset> measure_clocks(Communicator& communicator, const std::function<bool(int rank)>& same_host,
                                        const std::function<std::int64_t()>& clock = {});

}  // namespace troupe
