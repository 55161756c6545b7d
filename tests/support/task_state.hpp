#pragma once
#include <sys/types.h>

#include <string>

#include "tests/support/proc_file.hpp"

namespace troupe::test {

/// Of a process, or of a thread by its kernel id: `R` runs, `S` sleeps, `Z` has ended; one that is gone has ended, too.
/// proc(5), /proc/PID/stat.
inline char state_of_task(pid_t id) {
  const auto text = testing::proc_file("/proc/" + std::to_string(id) + "/stat");
  const auto name_ends = text.rfind(") ");
  return name_ends == std::string::npos ? 'Z' : text[name_ends + 2];
}

}  // namespace troupe::test
