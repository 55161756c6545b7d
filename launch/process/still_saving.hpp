#pragma once
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace troupe {

/// A rank's line to its agent, which does not show it: the rank waits for a save, or for after_save. An agent that has
/// asked it to stop gives it more time.
inline constexpr std::string_view kStillSaving = "\x1etroupe: still saving";
/// Time from one such line to the next.
inline constexpr std::chrono::seconds kStillSavingEvery{20};

/// Writes that line, if this process is a rank that an agent started. Any thread.
inline void say_still_saving() {
  if (std::getenv("TROUPE_INCARNATION") != nullptr)
    std::fprintf(stderr, "%.*s\n", static_cast<int>(kStillSaving.size()), kStillSaving.data());
}

}  // namespace troupe
