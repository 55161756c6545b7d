// How a coordinator is looked for.
#include <future>
#include <thread>

#include "launch/network/actor_system.hpp"
#include "launch/network/job_keys.hpp"
#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct Published {
  Published(const JobKeys& keys, std::uint16_t at) : config(true, keys), system(config) {
    CoordinatorOptions options;
    options.job_id = "job";
    options.log = [](const std::string&) {};
    actor = system.spawn(coordinator, options);
    port = publish_coordinator(system, actor, at, "127.0.0.1");
  }
  ~Published() { caf::anon_send_exit(actor, caf::exit_reason::user_shutdown); }

  ActorSystemConfig config;
  caf::actor_system system;
  CoordinatorActor actor;
  std::uint16_t port = 0;
};

}  // namespace

TEST_CASE("[L11] keys of another job are named soon, also by a coordinator that begins after who looks for it") {
  const auto ours = KeyMaker().keys_for("localhost"), theirs = KeyMaker().keys_for("localhost");
  const auto port = Published(ours, 0).port;  // free again
  ActorSystemConfig config(true, theirs);
  caf::actor_system system(config);
  auto looks = std::async(std::launch::async, [&] {
    try {
      (void)connect_coordinator(system, "127.0.0.1", port, 600s);
      return std::string("it was let in");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  });
  std::this_thread::sleep_for(1'500ms);  // it looks at other ports, too, by now
  const Published late(ours, port);
  CHECK_THAT(looks.get(), Catch::Contains("its keys are another job's"));
}
