#pragma once

namespace troupe {

/// From now on LibTorch's tensors on the CPU come from malloc, aligned to 64 bytes within what it gives, where else
/// they come from posix_memalign. glibc before 2.38 asks for more than the block there and gives the rest back, and so,
/// once something small lies in that rest, never uses the freed block for another of its size: a heap with small blocks
/// between large ones grows, each step in new pages (https://sourceware.org/bugzilla/show_bug.cgi?id=14581). Before a
/// second thread makes tensors; once, more do nothing.
void take_tensors_from_malloc();

/// glibc gives the end of its heap back to the system when enough of it is free, and takes it again: in every step of a
/// training loop some thousand pages, each a fault and 4 KiB of zeros (docs/benchmarks.md). From now on it keeps up to
/// 1 GiB, and maps only blocks above 32 MiB on their own; tensors come from it as well. What MALLOC_TRIM_THRESHOLD_,
/// MALLOC_MMAP_THRESHOLD_ or GLIBC_TUNABLES say holds. Before the process has a second thread.
void keep_freed_memory();

}  // namespace troupe
