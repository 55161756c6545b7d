#pragma once

namespace troupe {

/// Makes sure, at the start of a process, that the system will give it so many threads. A limit that is too low
/// otherwise shows in the middle of a library that ends the process without a reason. Throws Error(unavailable) that
/// names the limits. What runs out later all the same, in a thread where nobody can catch it, ends the process with a
/// line that says so and exit code 69.
void require_threads(int count);

}  // namespace troupe
