#pragma once
// LibTorch defines glog's CHECK; Catch2's is meant in tests. Some test programs do without LibTorch.
#if __has_include(<c10/util/Logging.h>)
#include <c10/util/Logging.h>
#undef CHECK
#endif
// Debian 12 ships Catch2 2.13, later releases ship 3: one header for both.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

#include <mutex>
#include <thread>

// Ranks are threads, and Catch2's assertions are for one: another thread's go one by one, without the values that
// Catch2 would show.
namespace troupe::testing {

inline const std::thread::id main_thread = std::this_thread::get_id();

inline void check_in_thread(const Catch::SourceLineInfo& line, const char* claim, bool holds) {
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  Catch::AssertionHandler assertion("CHECK in a thread", line, claim, Catch::ResultDisposition::ContinueOnFailure);
  assertion.handleExpr(Catch::Decomposer() <= holds);
  assertion.complete();
}

}  // namespace troupe::testing

#undef CHECK
#define CHECK(...)                                                                                             \
  do {                                                                                                         \
    if (std::this_thread::get_id() == troupe::testing::main_thread) {                                          \
      INTERNAL_CATCH_TEST("CHECK", Catch::ResultDisposition::ContinueOnFailure, __VA_ARGS__);                  \
    } else {                                                                                                   \
      troupe::testing::check_in_thread(CATCH_INTERNAL_LINEINFO, #__VA_ARGS__, static_cast<bool>(__VA_ARGS__)); \
    }                                                                                                          \
  } while (false)
