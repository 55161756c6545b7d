#include "actors/compute/compute_mailbox.hpp"

#include <caf/all.hpp>

#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

TEST_CASE("[L05] a rank whose own actor failed ends with that, not with the abort that follows from it") {
  caf::actor_system_config config;
  caf::actor_system system(config);
  const StepProtocol protocol({1, 7});
  ComputeMailbox mailbox(system, protocol, 10s);
  const ErrorReport disk{.code = ErrorCode::user, .rank = 1, .actor = "data loader", .cause = "the disk is gone"};
  const auto thrown_by = [&](auto&& wait) {
    caf::anon_send(mailbox.address(), RankFailed{disk});
    caf::anon_send(mailbox.address(), AbortJob{disk});
    auto code = ErrorCode::ok;
    try {
      wait();
    } catch (const Error& error) {
      code = error.code();
    }
    try {
      mailbox.await_abort();  // the abort, so that the next wait begins without one
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::aborted);
    }
    return code;
  };
  CHECK(thrown_by([&] { mailbox.await_abort(); }) == ErrorCode::user);
  CHECK(thrown_by([&] { mailbox.throw_if_interrupted(); }) == ErrorCode::user);
  CHECK(thrown_by([&] { (void)mailbox.await_membership(10s); }) == ErrorCode::user);
}
