#pragma once

/// Before a loop's function: it is compiled for several processors, and the program chooses the one for this processor
/// at its start. Sanitizers are not ready yet then.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define TROUPE_PROCESSOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TROUPE_PROCESSOR_CLONES
#endif
