#include "launch/process/fatal_signals.hpp"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

#include "tensor_io/memory/released_memory.hpp"

namespace troupe {
namespace {

constexpr int kMostFrames = 48;
constexpr std::array kFatal = {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE};

void write_text(const char* text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
}

// Only what POSIX lets a handler call, and backtrace(3), which is ready once it was called before.
extern "C" void on_fatal_signal(int number, siginfo_t* info, void*) {
  std::array<void*, kMostFrames> frames{};
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), kMostFrames), STDERR_FILENO);
  write_text("fatal: SIG");
  write_text(::sigabbrev_np(number));
  write_text(", with the stack above; addr2line -Cfie PROGRAM +ADDRESS shows the lines\n");
  if (const char* told = number == SIGSEGV ? absent_memory_at(info->si_addr) : nullptr; told != nullptr) {
    write_text("fatal: ");
    write_text(told);
    write_text("\n");
  }
  ::raise(number);  // blocked until this returns, and no longer ours
}

}  // namespace

void tell_fatal_signals() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);  // loads its library
  struct sigaction action {};
  action.sa_sigaction = on_fatal_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESETHAND | SA_SIGINFO;
  for (const int number : kFatal) ::sigaction(number, &action, nullptr);
#endif
}

}  // namespace troupe
