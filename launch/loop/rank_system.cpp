#include "launch/loop/rank_system.hpp"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <new>
#include <system_error>
#include <thread>

#include "launch/process/rank_lines.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/memory/failure_report.hpp"
#include "tensor_io/memory/memory_shortage.hpp"

namespace troupe {

namespace {

// The reducer with its handlers as spans, and the messages that it takes as arrows.
ReducerActor::behavior_type traced_reducer(ReducerActor::stateful_pointer<ReducerState> self, ReducerOptions options,
                                           const std::shared_ptr<TraceRecorder>& trace) {
  at::init_num_threads();  // a communication hook may multiply
  auto behavior = reducer(self, std::move(options));
  if (!trace && !spans_are_ranges()) return behavior;
  join_trace(trace, "reducer");
  return {
      [self](const InstallPlan& message) { self->state.install(message); },
      [plain = std::make_shared<caf::behavior>(std::move(behavior.unbox()))](const InstallCommunicator& message) {
        auto content = caf::make_message(message);
        (*plain)(content);
        return true;
      },
      [self](const BucketReady& bucket) {
        const TraceSpan span("BucketReady", TraceEvent::Kind::span);
        trace_message("BucketReady", "compute", bucket.sent_ns);
        self->state.ready(bucket);
      },
  };
}

}  // namespace

ErrorReport report_of(const std::exception_ptr& error, c10::Device device) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.report();
  } catch (const c10::Error& e) {
    return failure_report(e, device, {.code = ErrorCode::user});
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) return {.code = ErrorCode::user, .cause = e.what()};
    return {.code = ErrorCode::unavailable,
            .cause = std::string("no thread can be started: ") + e.what(),
            .remedy = "raise the limit of processes and threads (ulimit -u, the container's limit of pids)"};
  } catch (const std::bad_alloc&) {
    return {.code = ErrorCode::user,
            .operation = kOutOfMemory,
            .cause = "the system gives this process no more memory",
            .remedy = memory_remedy(c10::kCPU)};
  } catch (const std::exception& e) {
    return {.code = ErrorCode::user, .cause = e.what()};
  } catch (...) {
    return {.code = ErrorCode::user, .cause = "an exception that is not a std::exception"};
  }
}

RankSystem::RankSystem(caf::actor_system& system, RankSystemOptions options)
    : system_(system), options_(std::move(options)), link_(std::make_shared<CoordinatorLink>(options_.coordinator)) {
  join_trace(options_.trace, "compute");
  watch_memory(options_.device);
  // What the program makes on `cuda` without a number is to be on this rank's: the current device is each thread's own.
  if (!options_.device.is_cpu()) c10::impl::VirtualGuardImpl(options_.device.type()).setDevice(options_.device);
  if (options_.process.incarnation == 0) options_.process.incarnation = random_incarnation();
  const auto timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(options_.communicator.collective_timeout * 1000));
  // Longer than any collective's: when ranks are missing it is the reducer that says so, and the job goes on.
  const auto patience = 2 * timeout + std::chrono::seconds(5);
  compute_ = std::make_unique<Compute>(
      system_, ComputeOptions{options_.process, options_.world_size, options_.training, options_.strategy, patience,
                              bool(options_.reconnect) && options_.recovery});
  RankSupervisorOptions supervisor;
  supervisor.join = {options_.job_id,   options_.process,     options_.world_size, options_.host,
                     options_.build_id, options_.config_hash, options_.spare,      0};
  supervisor.coordinator = caf::actor_cast<caf::strong_actor_ptr>(options_.coordinator);
  supervisor.reconnect = options_.reconnect;
  supervisor.on_coordinator = [link = link_](const caf::strong_actor_ptr& found) {
    link->set(caf::actor_cast<CoordinatorActor>(found));
  };
  supervisor.ledger_path = options_.ledger_path;
  supervisor.log = error_line_printer();
  supervisor.hurt = options_.hurt;
  supervisor.compute = compute_->address();
  supervisor.status = status_;
  supervisor_ = options_.on_supervisor ? system_.spawn<caf::detached>(rank_supervisor, supervisor)
                                       : system_.spawn(rank_supervisor, supervisor);
  if (options_.on_supervisor) options_.on_supervisor(supervisor_);
  try {
    std::string refused;
    // CAF does not say so when the coordinator dies over a request.
    const std::chrono::milliseconds one_try(options_.reconnect ? 2'000 : 60'000);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (bool answered = false; !answered;) {
      compute_->mailbox()
          .actor()
          .request(supervisor_, std::chrono::seconds(60), JoinRank{one_try})
          .receive(
              [&](const JoinAccepted& accepted) {
                refused = accepted.refused;
                answered = true;
              },
              [&](caf::error& error) {  // the coordinator has died; another may be on its way
                refused = system_.render(error);
                answered = !options_.reconnect || status_->job_over || std::chrono::steady_clock::now() > deadline;
              });
      if (!answered) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (!refused.empty())
      throw Error(ErrorReport{ErrorCode::mismatch, options_.process.slot, "rank supervisor", -1, "join", refused, {}});
    compute_->join([this](const Membership& membership) { return make_communicators(membership); }, supervisor_,
                   status_, options_.spare ? std::chrono::hours(24 * 365) : std::chrono::hours(1));
  } catch (...) {
    fail(std::current_exception());
    shut_down();
    throw;
  }
}

Compute::Services RankSystem::make_communicators(const Membership& membership) {
  const auto generation = membership.generation;
  std::shared_ptr<Rendezvous> rendezvous;
  if (options_.coordinator) {
    rendezvous = std::make_shared<CoordinatorRendezvous>(system_, link_, supervisor_, generation);
  } else {
    rendezvous = std::make_shared<LocalRendezvous>();
  }
  caf::anon_send(supervisor_, RegisterRendezvous{generation, rendezvous});
  const auto timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(options_.communicator.collective_timeout * 1000));
  const auto communicator = [&](const char* name) {
    CommunicatorOptions communicator;
    communicator.rank = compute_->rank();
    communicator.world_size = membership.world_size();
    communicator.name = name;
    communicator.backend = options_.communicator.backend;
    communicator.device = options_.device;
    communicator.nccl = options_.nccl;
    communicator.host = options_.host;
    communicator.interface_address = options_.interface_address;
    communicator.timeout = timeout;
    communicator.rendezvous = rendezvous;
    communicator.timed = name == std::string_view(kProgramCommunicator);  // compute's stream waits for its collectives
    std::shared_ptr<Communicator> made = make_communicator(communicator);
    caf::anon_send(supervisor_, RegisterCommunicator{name, generation, made});
    return made;
  };
  Compute::Services services;
  services.supervisor = supervisor_;
  services.progress = progress_;
  services.status = status_;
  services.program_communicator = communicator(kProgramCommunicator);
  services.gradient_communicator = communicator(kGradientCommunicator);
  if (!reducer_) {
    reducer_ = system_.spawn<caf::detached>(traced_reducer,
                                            ReducerOptions{compute_->rank(), services.gradient_communicator,
                                                           compute_->address(), supervisor_, progress_, fault_watch()},
                                            options_.trace);
  } else {
    // It may still be on its way out of the old communicator, which was aborted.
    std::string problem;
    compute_->mailbox()
        .actor()
        .request(reducer_, std::chrono::seconds(10), InstallCommunicator{services.gradient_communicator})
        .receive([](bool) {}, [&](caf::error& error) { problem = system_.render(error); });
    if (!problem.empty())
      throw Error(ErrorReport{.code = ErrorCode::internal,
                              .rank = compute_->rank(),
                              .actor = "reducer",
                              .operation = "recovery",
                              .cause = "it did not leave the old communicator: " + problem});
  }
  services.reducer = reducer_;
  if (const auto model = synchronised_.lock()) move_sync_batchnorm(*model, services.program_communicator);
  return services;
}

void RankSystem::synchronise_norms(const std::shared_ptr<torch::nn::Module>& model) {
  convert_sync_batchnorm(*model, compute_->services().program_communicator);
  synchronised_ = model;
}

void RankSystem::finish(const ErrorReport& report) {
  if (finished_) return;
  finished_ = true;
  status_->loop_ended = true;
  compute_->mailbox()
      .actor()
      .request(supervisor_, caf::infinite, FinishRank{report})  // the supervisor has the deadline
      .receive([](bool) {}, [](caf::error&) {});
}

ErrorReport RankSystem::fail(const std::exception_ptr& error) {
  auto report = compute_->complete(report_of(error, options_.device));
  if (report.operation == kOutOfMemory) {
    const auto held = describe(compute_->held_memory());
    report.cause += held.empty() ? "" : "; " + held;
  }
  // The supervisor aborts the communicators first, so that no thread of this rank stays in a collective.
  caf::anon_send(supervisor_, RankFailed{report});
  finish(report);
  return report;
}

void RankSystem::shut_down() {
  join_trace(nullptr, {});
  if (reducer_) {
    caf::anon_send_exit(reducer_, caf::exit_reason::user_shutdown);
    compute_->mailbox().actor().wait_for(reducer_);
  }
  if (supervisor_) {
    caf::anon_send_exit(supervisor_, caf::exit_reason::user_shutdown);
    compute_->mailbox().actor().wait_for(supervisor_);
  }
  reducer_ = ReducerActor();
  supervisor_ = RankSupervisorActor();
}

RankSystem::~RankSystem() {
  if (!finished_)
    finish({.code = ErrorCode::user,
            .rank = compute_->rank(),
            .actor = "compute",
            .step = compute_->steps_done(),
            .cause = "the program left its loop before its end"});
  shut_down();
}

}  // namespace troupe
