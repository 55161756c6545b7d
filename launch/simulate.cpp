#include "launch/simulate.hpp"

#include <mutex>
#include <thread>

namespace troupe {

void simulate(caf::actor_system& system, int world_size, const RankSystemOptions& options, const std::function<void(RankSystem&)>& body,
              const std::function<void(int rank, const ErrorReport&)>& on_failure) {
  CoordinatorOptions coordinator_options;
  coordinator_options.job_id = options.job_id;
  coordinator_options.world_size = world_size;
  auto coordinator_actor = system.spawn(coordinator, coordinator_options);
  std::mutex failures;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      auto mine = options;
      mine.process = {rank, 0};
      mine.world_size = world_size;
      mine.coordinator = coordinator_actor;
      ErrorReport report{ErrorCode::ok, rank, {}, -1, {}, {}, {}};
      try {
        RankSystem system_of_rank(system, mine);
        try {
          body(system_of_rank);
          system_of_rank.finish(report);
        } catch (...) {
          report = system_of_rank.fail(std::current_exception());
        }
      } catch (...) {
        report = report_of(std::current_exception());
        if (report.rank < 0) report.rank = rank;
      }
      if (report.code != ErrorCode::ok) {
        std::lock_guard lock(failures);
        on_failure(rank, report);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  caf::anon_send_exit(coordinator_actor, caf::exit_reason::user_shutdown);
}

}  // namespace troupe
