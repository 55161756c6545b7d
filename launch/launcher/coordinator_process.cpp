#include "launch/launcher/coordinator_process.hpp"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>

#include "launch/launcher/journal.hpp"
#include "launch/network/actor_system.hpp"
#include "launch/network/job_keys.hpp"
#include "launch/process/fatal_signals.hpp"
#include "launch/process/process_limits.hpp"

namespace troupe {

int run_coordinator(const CoordinatorProcessOptions& options) {
  tell_fatal_signals();
  // Slurm sends a signal to all processes of a job. This one ends when the launcher lets it.
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_IGN);
  require_threads(6);
  CoordinatorOptions coordinator_options;
  coordinator_options.job_id = options.run.job_id;
  coordinator_options.run = options.run.to_text();
  coordinator_options.world_size = options.world_size;
  coordinator_options.recovery = options.recovery;
  if (!options.chaos.empty()) {
    coordinator_options.chaos = parse_chaos(options.chaos);
    coordinator_options.chaos->life = options.life;
  }
  const auto log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  coordinator_options.log = log;
  std::optional<JobKeys> keys;
  if (options.keys_on_stdin) keys = JobKeys::read_framed(0);
  std::optional<Journal> journal;
  if (!options.journal.empty()) {
    journal.emplace(options.journal, options.run.job_id);
    coordinator_options.resumed = journal->last();
    coordinator_options.record = [&journal](const Membership& membership) { journal->append(membership); };
    if (journal->last())
      std::fprintf(stderr, "the coordinator takes over at generation %llu\n",
                   static_cast<unsigned long long>(journal->last()->generation));
  }
  ActorSystemConfig config(true, std::move(keys), log);
  caf::actor_system system(config);
  auto actor = system.spawn(coordinator, coordinator_options);
  struct Ending {  // the system's destructor would wait for it, also where an exception leaves
    ~Ending() {
      caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
      system.await_actors_before_shutdown(false);
    }
    const CoordinatorActor& actor;
    caf::actor_system& system;
  } ending{actor, system};
  std::printf("port %d\n", publish_coordinator(system, actor, static_cast<std::uint16_t>(options.port), options.address,
                                               options.insecure));
  std::fflush(stdout);
  char byte = 0;
  while (true) {
    const auto n = ::read(0, &byte, 1);
    if (n == 0 || (n < 0 && errno != EINTR)) break;
  }
  return 0;
}

}  // namespace troupe
