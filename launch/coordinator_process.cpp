#include "launch/coordinator_process.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "launch/actor_system.hpp"

namespace troupe {

int run_coordinator(const std::string& job_id, int world_size) {
  ActorSystemConfig config(true);
  caf::actor_system system(config);
  auto actor = system.spawn(coordinator, CoordinatorOptions{job_id, world_size});
  std::printf("port %d\n", publish_coordinator(system, actor, 0, "127.0.0.1"));
  std::fflush(stdout);
  char byte;
  while (true) {
    const auto n = ::read(0, &byte, 1);
    if (n == 0 || (n < 0 && errno != EINTR)) break;
  }
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  return 0;
}

}  // namespace troupe
