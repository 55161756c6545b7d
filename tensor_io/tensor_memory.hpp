#pragma once

namespace troupe {

/// From now on LibTorch's tensors on the CPU come from malloc, aligned to 64 bytes within what it gives, where else they come from
/// posix_memalign. glibc before 2.38 asks for more than the block there and gives the rest back, and so, once something small lies in
/// that rest, never uses the freed block for another of its size: a heap with small blocks between large ones grows, each step in new
/// pages (https://sourceware.org/bugzilla/show_bug.cgi?id=14581). Before a second thread makes tensors; once, more do nothing.
void take_tensors_from_malloc();

}  // namespace troupe
