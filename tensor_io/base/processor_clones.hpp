#pragma once

/// In front of a loop's function: compiled for several processors, the one for this processor chosen when the program
/// starts. Sanitizers are not ready yet when the choice is made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define TROUPE_PROCESSOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TROUPE_PROCESSOR_CLONES
#endif
