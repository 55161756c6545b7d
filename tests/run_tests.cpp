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

#include "tests/share.hpp"

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

// A case that takes long and is tagged [share] is run for about a quarter of the commits where TROUPE_SHARE is set, as
// in CI. False: all that was chosen is left out.
bool leave_out(Catch::Session& session) {
  if (std::getenv("TROUPE_SHARE") == nullptr) return true;
  const auto& config = session.config();
  auto rest = session.configData();
  const auto chosen = Catch::filterTests(Catch::getAllTestCasesSorted(config), config.testSpec(), config);
  std::size_t left_out = 0;
  for (const auto& test : chosen) {
    const auto& info = test.getTestCaseInfo();
    if (info.tagsAsString().find("[share]") == std::string::npos || troupe::testing::in_share(0.25, info.name))
      continue;
    std::printf("not in this commit's share: %s\n", info.name.c_str());
    std::string name = "~";
    for (const char c : info.name) {
      if (std::string("\\,[]").find(c) != std::string::npos) name += '\\';
      name += c;
    }
    rest.testsOrTags.push_back(name);
    ++left_out;
  }
  session.useConfigData(rest);
  return left_out == 0 || left_out < chosen.size();
}

int run_tests(int argc, char** argv) {
  Catch::Session session;
  if (const int wrong = session.applyCommandLine(argc, argv); wrong != 0) return wrong;
  return leave_out(session) ? session.run() : 0;
}
