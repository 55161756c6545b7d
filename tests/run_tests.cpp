// Catch2 2's runner takes 15 s to compile: once for all test programs.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Listener = Catch::EventListenerBase;
#else
#define CATCH_CONFIG_RUNNER
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
using Listener = Catch::TestEventListenerBase;
#endif

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace {

/// Aborts the program, and names the case, when one takes longer than TROUPE_CASE_SECONDS. Without that variable it
/// watches nothing: ctest has a deadline for a case that is started alone.
class CaseDeadline : public Listener {
 public:
  using Listener::Listener;
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    const char* seconds = std::getenv("TROUPE_CASE_SECONDS");
    if (seconds == nullptr) return;
    over_ = false;
    watcher_ = std::thread([this, name = info.name, limit = std::chrono::seconds(std::atoi(seconds))] {
      std::unique_lock lock(mutex_);
      if (ended_.wait_for(lock, limit, [this] { return over_; })) return;
      std::fprintf(stderr, "not over after %d s: %s\n", static_cast<int>(limit.count()), name.c_str());
      std::abort();
    });
  }
  void testCaseEnded(const Catch::TestCaseStats&) override {
    if (!watcher_.joinable()) return;
    {
      const std::scoped_lock lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
    watcher_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread watcher_;
};

CATCH_REGISTER_LISTENER(CaseDeadline)

}  // namespace

int run_tests(int argc, char** argv) { return Catch::Session().run(argc, argv); }
