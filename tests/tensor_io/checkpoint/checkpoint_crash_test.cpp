// What is on the disk when a save stops half-way: at each of its calls of the operating system, by an error or for
// good.
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tests/catch.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/training_state.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Contains;
namespace fs = std::filesystem;
using Fault = FaultyFiles::Fault;

namespace {

TrainingState changed(TrainingState state) {
  state.tensors[0].second.neg_();
  return state;
}

// What was saved before, and what is saved when the disk fails.
struct Scenario {
  std::vector<TrainingState> before;
  TrainingState during;
  bool best = false;
  std::int64_t keep_last = 3;
};

std::vector<Scenario> scenarios() {
  return {{{small_state(10)}, small_state(20), true, 3},                     // another step
          {{small_state(10)}, changed(small_state(10)), false, 3},           // the only one again
          {{small_state(10), small_state(20)}, small_state(30), false, 1}};  // old ones go
}

bool has_any(const std::string& directory, const std::string& prefix) {
  const fs::directory_iterator entries(directory);
  return std::any_of(begin(entries), end(entries),
                     [&](const auto& entry) { return entry.path().filename().string().starts_with(prefix); });
}
bool has_temporaries(const std::string& directory) { return has_any(directory, ".tmp-"); }
bool has_leftovers(const std::string& directory) { return has_temporaries(directory) || has_any(directory, ".old-"); }

// Loads, and requires that it is the state before or the new one.
bool loads_new(const std::string& directory, const Scenario& scenario) {
  const auto loaded = load_checkpoint(directory, "latest").state;
  const bool is_new = equal(loaded, scenario.during);
  CHECK((is_new || equal(loaded, scenario.before.back())));
  return is_new;
}

void go_on_from(const std::string& directory, const Scenario& scenario) {
  const bool was_new = loads_new(directory, scenario);
  FaultyFiles healthy;
  WholeStateWriter writer(directory, scenario.keep_last, healthy);
  CHECK_FALSE(has_leftovers(directory));
  CHECK(loads_new(directory, scenario) == was_new);
  writer.save(small_state(90), false);
  CHECK(load_checkpoint(directory, "latest").state.step == 90);
  CHECK_FALSE(has_leftovers(directory));
}

// Runs the scenario with a fault at each call in turn until the save needs fewer calls than that; returns how many it
// needs.
int at_each_call(const Scenario& scenario, Fault fault, int errno_value,
                 const std::function<void(const std::string&, FaultyFiles&, bool)>& check) {
  for (int call = 1; call < 500; ++call) {
    const ScratchDirectory scratch;
    {
      FaultyFiles healthy;
      WholeStateWriter writer(scratch.path(), 3, healthy);
      for (const auto& state : scenario.before) writer.save(state, false);
    }
    FaultyFiles files(fault, call, errno_value);
    bool saved = true;
    {
      WholeStateWriter writer(scratch.path(), scenario.keep_last, files);
      try {
        writer.save(scenario.during, scenario.best);
      } catch (const Error& error) {
        saved = false;
        INFO(error.what());
        CHECK(error.code() == ErrorCode::io);
        CHECK_THAT(error.what(), Contains(scratch.path()) && Contains(std::system_category().message(errno_value)));
      }
    }
    INFO("call " << call);
    if (!files.happened()) return call - 1;
    check(scratch.path(), files, saved);
  }
  FAIL("the save never ends");
  return 0;
}

}  // namespace

TEST_CASE("[C03] fault 27: killed at any call of a save, a run goes on from the last complete checkpoint") {
  for (const auto& scenario : scenarios()) {
    int was_new = 0;
    const int calls =
        at_each_call(scenario, Fault::kill, EIO, [&](const std::string& directory, FaultyFiles&, bool saved) {
          const bool is_new = loads_new(directory, scenario);
          was_new += is_new;
          CHECK((is_new || !saved));
          go_on_from(directory, scenario);
        });
    CHECK(calls > 20);
    CHECK(was_new > 0);
  }
}

TEST_CASE("[C03] fault 27: after a power cut at any call of a save, a run goes on from the last complete checkpoint") {
  for (const auto& scenario : scenarios()) {
    at_each_call(scenario, Fault::kill, EIO, [&](const std::string& directory, FaultyFiles& files, bool saved) {
      files.lose_power();
      const bool is_new = loads_new(directory, scenario);
      CHECK((is_new || !saved));
      go_on_from(directory, scenario);
    });
  }
}

TEST_CASE("[C03] fault 26: a full or failing disk at any call of a save leaves the checkpoint before and no rubbish") {
  for (const auto& scenario : scenarios()) {
    for (const int errno_value : {ENOSPC, EIO, EDQUOT}) {
      int failed = 0;
      at_each_call(scenario, Fault::refuse_once, errno_value,
                   [&](const std::string& directory, FaultyFiles&, bool saved) {
                     const bool is_new = loads_new(directory, scenario);
                     CHECK((is_new || !saved));
                     failed += !saved;
                     if (!saved) CHECK_FALSE(has_temporaries(directory));
                     go_on_from(directory, scenario);
                   });
      CHECK(failed > 20);
    }
  }
}

TEST_CASE("[C03] fault 26: the same writer saves again once the disk has room") {
  const ScratchDirectory scratch;
  FaultyFiles files(Fault::refuse_once, 5, ENOSPC);
  WholeStateWriter writer(scratch.path(), 3, files);
  CHECK_THROWS_WITH(writer.save(small_state(1), false), Contains("No space left") && Contains("keep_last"));
  CHECK_THROWS_WITH(load_checkpoint(scratch.path(), "latest"), Contains("no checkpoint"));
  writer.save(small_state(2), false);
  CHECK(load_checkpoint(scratch.path(), "latest").state.step == 2);
}

TEST_CASE("[C03] fault 26: a file size limit is an error with the file's name, and the checkpoint before stays") {
  const ScratchDirectory scratch;
  WholeStateWriter writer(scratch.path(), 3);
  writer.save(small_state(1), false);
  auto large = small_state(2);
  large.tensors.emplace_back("model.large", torch::ones(1 << 20));

  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 1 << 20;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::string message;
  try {
    writer.save(large, false);
  } catch (const Error& error) {
    message = error.what();
  }
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  ::signal(SIGXFSZ, old_handler);

  CHECK_THAT(message, Contains("rank-00000.safetensors") && Contains("File too large"));
  CHECK(load_checkpoint(scratch.path(), "latest").state.step == 1);
  CHECK_FALSE(has_leftovers(scratch.path()));
}

TEST_CASE("[C03] fault 26: a file system that is full fails the save, and the next small one fits") {
  const ScratchDirectory scratch;
  // In a mount namespace of its own, so that nothing stays mounted whatever happens.
  if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", scratch.path().c_str(), "tmpfs", 0, "size=2m") != 0) {
    WARN("SKIPPED: mounting a small file system needs root");
    return;
  }
  {
    WholeStateWriter writer(scratch.path(), 3);
    writer.save(small_state(1), false);
    auto large = small_state(2);
    large.tensors.emplace_back("model.large", torch::ones(1 << 20));
    CHECK_THROWS_WITH(writer.save(large, false), Contains("rank-00000.safetensors") && Contains("No space left"));
    CHECK_FALSE(has_leftovers(scratch.path()));
    CHECK(load_checkpoint(scratch.path(), "latest").state.step == 1);
    writer.save(small_state(3), false);
    CHECK(equal(load_checkpoint(scratch.path(), "latest").state, small_state(3)));
  }
  ::umount2(scratch.path().c_str(), MNT_DETACH);
}
