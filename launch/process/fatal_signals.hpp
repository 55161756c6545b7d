#pragma once

namespace troupe {

/// From here on, a signal of a fault in this process (SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE) first writes to
/// standard error the stack of its thread, its name, and AbsentMemory's explanation of the address. The process
/// then ends by that signal as it would have. Any thread, once. Does nothing under a sanitizer, which reports
/// more.
void tell_fatal_signals();

}  // namespace troupe
