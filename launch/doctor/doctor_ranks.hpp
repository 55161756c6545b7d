#pragma once
#include "launch/doctor/doctor.hpp"

namespace troupe {

/// A check for `troupe doctor`: a rank on every host adds numbers up, and takes a step whose gradients are known.
/// Starts `troupe launch` of troupe-check-ranks, which lies beside `troupe_program`; without a list, two ranks here.
/// Ranks that do not end within `patience` are killed.
DoctorCheck ranks_check(const std::string& troupe_program, std::chrono::seconds patience = std::chrono::seconds(60));

}  // namespace troupe
