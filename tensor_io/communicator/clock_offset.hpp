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

/// The difference that makes a rank's steady clock rank 0's. Ranks of one host share a clock; clocks of two hosts began
/// to count at different times.
struct ClockOffset {
  std::int64_t offset_ns = 0;
  std::int64_t error_ns = 0;  ///< the truth is no farther away than this
};

/// As in NTP (Mills, RFC 5905): of the samples the one with the shortest way, assumed to be halfway at the answer; so
/// wrong by half that way at most. `same_host`: the clocks are one unless the samples contradict. Pure.
ClockOffset offset_of(const std::vector<ClockSample>& samples, bool same_host);

/// Collective: rank 0 asks every rank eight times, one after the other, over send and recv. By rank of the group, on
/// all ranks. `same_host`: whether a rank is on rank 0's host; `clock` replaces the steady clock in tests. Throws the
/// communicator's errors.
std::vector<ClockOffset> measure_clocks(Communicator& communicator, const std::function<bool(int rank)>& same_host,
                                        const std::function<std::int64_t()>& clock = {});

}  // namespace troupe
