#include "launch/rank_system.hpp"

#include <random>

namespace troupe {

ErrorReport report_of(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.report();
  } catch (const c10::Error& e) {
    return {ErrorCode::user, -1, {}, -1, {}, e.what_without_backtrace(), {}};
  } catch (const std::exception& e) {
    return {ErrorCode::user, -1, {}, -1, {}, e.what(), {}};
  } catch (...) {
    return {ErrorCode::user, -1, {}, -1, {}, "an exception that is no std::exception", {}};
  }
}

RankSystem::RankSystem(caf::actor_system& system, RankSystemOptions options) : system_(system), options_(std::move(options)) {
  const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(options_.communicator.collective_timeout * 1000));
  compute_ =
      std::make_unique<Compute>(system_, ComputeOptions{options_.rank, options_.world_size, options_.training, options_.strategy, timeout});
  RankSupervisorOptions supervisor;
  supervisor.rank = options_.rank;
  supervisor.join = {options_.job_id, options_.rank,     options_.world_size, std::random_device{}(),
                     options_.host,   options_.build_id, options_.config_hash};
  supervisor.coordinator = caf::actor_cast<caf::strong_actor_ptr>(options_.coordinator);
  supervisor.compute = compute_->address();
  supervisor.status = status_;
  supervisor.rendezvous = options_.rendezvous;
  supervisor_ = system_.spawn(rank_supervisor, supervisor);
  try {
    std::string refused;
    compute_->mailbox()
        .request(supervisor_, timeout, JoinRank{timeout})
        .receive([&](const JoinAccepted& accepted) { refused = accepted.refused; },
                 [&](caf::error& error) { refused = system_.render(error); });
    if (!refused.empty()) throw Error(ErrorReport{ErrorCode::mismatch, options_.rank, "rank supervisor", -1, "join", refused, {}});
    run_lanes();
  } catch (...) {
    fail(std::current_exception());
    shut_down();
    throw;
  }
}

void RankSystem::run_lanes() {
  const auto lane = [&](const char* name) {
    CommunicatorOptions communicator;
    communicator.rank = options_.rank;
    communicator.world_size = options_.world_size;
    communicator.name = name;
    communicator.backend = options_.communicator.backend;
    communicator.host = options_.host;
    communicator.interface_address = options_.interface_address;
    communicator.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(options_.communicator.collective_timeout * 1000));
    communicator.rendezvous = options_.rendezvous;
    std::shared_ptr<Communicator> made = make_communicator(communicator);
    caf::anon_send(supervisor_, RegisterLane{name, made});
    return made;
  };
  Compute::Services services;
  services.program_lane = lane("program");
  services.bucket_lane = lane("buckets");
  services.progress = std::make_shared<StepProgress>();
  services.status = status_;
  services.supervisor = supervisor_;
  reducer_ = system_.spawn<caf::detached>(
      reducer, ReducerOptions{options_.rank, services.bucket_lane, compute_->address(), supervisor_, services.progress});
  services.reducer = reducer_;
  compute_->connect(services);
}

void RankSystem::finish(const ErrorReport& report) {
  if (finished_) return;
  finished_ = true;
  status_->loop_ended = true;
  compute_->mailbox()
      .request(supervisor_, std::chrono::seconds(5), FinishRank{report})
      .receive([](bool) {}, [](caf::error&) {});  // a coordinator that is gone needs no telling
}

ErrorReport RankSystem::fail(std::exception_ptr error) {
  auto report = compute_->complete(report_of(error));
  if (report.code == ErrorCode::peer_lost) {
    // A peer that left did so for a reason, which the coordinator is about to tell.
    compute_->mailbox().receive(
        [&](const AbortJob& job) {
          report = {ErrorCode::aborted,
                    options_.rank,
                    "compute",
                    report.step,
                    report.operation,
                    "the job was aborted: " + job.report.to_string(),
                    {}};
        },
        caf::after(std::chrono::milliseconds(500)) >> [] {});
  }
  // The supervisor aborts the lanes first, so that no thread of this rank stays in a collective.
  caf::anon_send(supervisor_, RankFailed{report});
  finish(report);
  return report;
}

void RankSystem::shut_down() {
  if (reducer_) {
    caf::anon_send_exit(reducer_, caf::exit_reason::user_shutdown);
    compute_->mailbox().wait_for(reducer_);
  }
  if (supervisor_) {
    caf::anon_send_exit(supervisor_, caf::exit_reason::user_shutdown);
    compute_->mailbox().wait_for(supervisor_);
  }
  reducer_ = ReducerActor();
  supervisor_ = RankSupervisorActor();
}

RankSystem::~RankSystem() {
  if (!finished_)
    finish({ErrorCode::user, options_.rank, "compute", compute_->steps_done(), {}, "the program left its loop without an end", {}});
  shut_down();
}

}  // namespace troupe
