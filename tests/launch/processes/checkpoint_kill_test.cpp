// A real SIGKILL at each call of the operating system that a save makes (kill_at_call), and what can be loaded then.
#include <signal.h>

#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tests/catch.hpp"
#include "tests/support/running_process.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/training_state.hpp"

using namespace troupe;
using testing::small_state;

namespace {

void save(const std::string& directory, int step) {
  testing::WholeStateWriter(directory, 1).save(small_state(step), false);
}

/// At each call in turn; halfway: a write has written half of its bytes then.
void kill_at_each_call(bool halfway) {
  int call = 1, was_new = 0;
  for (; call < 200; ++call) {
    const testing::ScratchDirectory scratch;
    save(scratch.path(), 10);
    std::map<std::string, std::string> environment{{"LD_PRELOAD", TROUPE_KILL_AT_CALL},
                                                   {"KILL_AT_CALL", std::to_string(call)}};
    if (halfway) environment["KILL_HALFWAY"] = "1";
    // Step 20 in place of step 10: the longest way, with an old one to be removed.
    const auto killed = testing::RunningProcess({TROUPE_SAVE_PROBE, scratch.path(), "20", "1"}, environment).finish();
    INFO("call " << call << ": " << killed.output);
    const auto state = load_checkpoint(scratch.path(), "latest").state;
    if (killed.code == 0) {
      CHECK((testing::equal(state, small_state(20))));
      break;
    }
    REQUIRE(killed.code == 128 + SIGKILL);
    const bool is_new = testing::equal(state, small_state(20));
    CHECK((is_new || testing::equal(state, small_state(10))));
    was_new += is_new;
    save(scratch.path(), 30);
    CHECK((testing::equal(load_checkpoint(scratch.path(), "latest").state, small_state(30))));
  }
  CHECK(call > 20);
  CHECK(call < 200);
  CHECK(was_new > 0);
}

}  // namespace

TEST_CASE(
    "[C03] fault 27: a SIGKILL at any system call of a save leaves a checkpoint that loads, and the next save works",
    "[share]") {
  kill_at_each_call(false);
}

TEST_CASE("[C03] fault 27: so does a SIGKILL in the middle of any write of a save", "[share]") {
  kill_at_each_call(true);
}
