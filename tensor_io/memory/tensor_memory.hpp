#pragma once

namespace troupe {

/// From now on LibTorch's tensors on the CPU come from malloc, aligned to 64 bytes within its block, and not from
/// posix_memalign. There glibc before 2.38 requests more than the block and gives the rest back. Once a small block
/// lies in that rest, it never uses the freed block for another of its size. So a heap with small blocks between large
/// ones grows, each step in new pages (https://sourceware.org/bugzilla/show_bug.cgi?id=14581). Before a second thread
/// makes tensors; once, more do nothing.
void take_tensors_from_malloc();

/// glibc gives the end of its heap back to the system when enough of it is free, and takes it again. A training loop
/// does so with some thousand pages a step, each a fault and 4 KiB of zeros (docs/benchmarks.md). From now on it keeps
/// up to 1 GiB, and maps only blocks above 32 MiB on their own; tensors come from it as well. MALLOC_TRIM_THRESHOLD_,
/// MALLOC_MMAP_THRESHOLD_ and GLIBC_TUNABLES still hold. Before the process has a second thread.
void keep_freed_memory();

}  // namespace troupe
