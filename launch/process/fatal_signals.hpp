#pragma once

namespace troupe {

/// From here on, a signal that ends this process by a fault of its own (SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE) first
/// writes the stack of the thread that it met, its name, and what AbsentMemory knows of the address, to standard error;
/// the process then ends by that signal as it would have. Any thread, once. Does nothing under a sanitizer, which says
/// more.
void tell_fatal_signals();

}  // namespace troupe
