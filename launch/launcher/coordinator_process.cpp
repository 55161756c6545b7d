#include "launch/launcher/coordinator_process.hpp"

#include <poll.h>
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

namespace {

// Until standard input ends: a line each time that the coordinator has answered.
void say_that_it_lives(caf::actor_system& system, const CoordinatorActor& actor) {
  caf::scoped_actor self(system);
  while (true) {
    pollfd launcher{0, POLLIN, 0};
    char byte = 0;
    if (::poll(&launcher, 1, static_cast<int>(kCoordinatorPulse.count())) > 0) {
      const auto n = ::read(0, &byte, 1);
      if (n == 0 || (n < 0 && errno != EINTR)) return;
    }
    self->request(actor, kCoordinatorPulse, GetValue{kRunKey})
        .receive([](bool, const std::string&) { [[maybe_unused]] const auto n = ::write(1, "\n", 1); },
                 [](const caf::error&) {});
  }
}

}  // namespace

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
    try {
      journal.emplace(options.journal, options.run.job_id);
      coordinator_options.resumed = journal->last();
      coordinator_options.record = [&journal](const Membership& membership) { journal->append(membership); };
    } catch (const Error& error) {
      if (options.before == 0) throw;  // nothing is lost yet
      log("warning: the coordinator takes over without its journal (" + error.report().to_string() + ")");
    }
    if (coordinator_options.resumed)
      log("the coordinator takes over at generation " + std::to_string(coordinator_options.resumed->generation));
  }
  coordinator_options.life = options.before;
  if (options.moved) coordinator_options.comes_back_late = kLongestSearchRound;
  coordinator_options.without_journal = options.before > 0 && (!journal || journal->is_new());
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
  say_that_it_lives(system, actor);
  return 0;
}

}  // namespace troupe
