#pragma once

namespace troupe {

/// Makes sure, at the start of a process, that the system will give it so many threads. A limit that is too low otherwise shows in the
/// middle of a library that ends the process without a reason. Throws Error(unavailable) that names the limits. What runs out later all
/// the same, in a thread where nobody can catch it, ends the process with a line that says so and exit code 69.
void require_threads(int count);

/// glibc gives the end of its heap back to the system when enough of it is free, and takes it again: in every step of a training loop some
/// thousand pages, each a fault and 4 KiB of zeros (docs/benchmarks.md). From now on it keeps up to 1 GiB, and maps only blocks above 32
/// MiB on their own; tensors come from it as well (tensor_memory.hpp). What MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ or
/// GLIBC_TUNABLES say holds. Before the process has a second thread.
void keep_freed_memory();

}  // namespace troupe
