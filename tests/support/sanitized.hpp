#pragma once

namespace troupe::testing {

/// Whether AddressSanitizer watches this program: it takes fatal signals, memory and file descriptors for itself.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
/// Whether ThreadSanitizer does: what touches much memory takes some twenty times as long.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

}  // namespace troupe::testing

/// Ends the test where AddressSanitizer has what it is about for itself, and says why.
#define NOT_UNDER_ADDRESS_SANITIZER(why)      \
  if (troupe::testing::kAddressSanitizer) {   \
    WARN("not under AddressSanitizer: " why); \
    return;                                   \
  }
