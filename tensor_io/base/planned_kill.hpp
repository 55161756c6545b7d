#pragma once
#include <csignal>
#include <string>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/fault_point.hpp"

namespace troupe {

/// Whether TROUPE_FAULT names this slot for a SIGKILL. Its life and step are not known here.
inline bool is_kill_planned(int slot) {
  try {
    for (const auto& fault : planned_faults()) {
      if (fault.slot == std::to_string(slot) && fault.signal == SIGKILL) return true;
    }
  } catch (const Error&) {  // who reads it first refuses it
  }
  return false;
}

}  // namespace troupe
