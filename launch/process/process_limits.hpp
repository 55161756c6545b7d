#pragma once

namespace troupe {

/// Makes sure, at the start of a process, that the system will give it this many threads. A limit that is too low
/// otherwise shows in the middle of a library that ends the process without a reason. Throws Error(unavailable) that
/// names the limits. If threads still run out later, in a thread without a handler, the process ends with a line about
/// it and exit code 69.
void require_threads(int count);

}  // namespace troupe
