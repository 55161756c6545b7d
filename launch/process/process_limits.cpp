#include "launch/process/process_limits.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

constexpr const char* kRemedy =
    "raise the limit of processes and threads (ulimit -u, the container's limit of pids) or of memory (ulimit -v)";

std::terminate_handler previous_handler = nullptr;

bool can_start_thread() {
  try {
    std::thread([] {}).join();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

[[noreturn]] void on_terminate() {
  std::string why;
  if (const auto error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::system_error& failure) {
      if (failure.code() == std::errc::resource_unavailable_try_again) why = failure.what();
    } catch (...) {  // said by the handler before
    }
  } else if (!can_start_thread()) {
    why = "a library ended the process";
  }
  if (!why.empty()) {
    std::fprintf(stderr, "error: no thread can be started: %s; %s\n", why.c_str(), kRemedy);
    _exit(exit_code(ErrorCode::unavailable));
  }
  previous_handler();
  std::abort();
}

}  // namespace

void require_threads(int count) {
  if (previous_handler == nullptr) previous_handler = std::set_terminate(on_terminate);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  const auto join = [&] {
    over = true;
    over.notify_all();
    for (auto& thread : threads) thread.join();
  };
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([&over] { over.wait(false); });
  } catch (const std::system_error& failure) {
    const auto started = threads.size();
    join();
    throw Error(ErrorCode::unavailable, "start",
                "only " + std::to_string(started) + " of " + std::to_string(count) +
                    " threads can be started: " + failure.what(),
                kRemedy);
  }
  join();
}

}  // namespace troupe
