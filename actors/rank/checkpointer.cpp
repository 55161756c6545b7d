#include "actors/rank/checkpointer.hpp"

#include <cerrno>
#include <exception>
#include <utility>

#include "actors/rank/rank_supervisor.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

namespace {

// Who, and where in the run; the error itself knows doing what and why.
ErrorReport complete(ErrorReport report, int rank, std::int64_t step) {
  report.rank = rank;
  report.actor = "checkpointer";
  report.step = step;
  return report;
}

// anon_send: in CAF 0.17 a typed actor may not send() to one whose type it does not know.
void tell_supervisor(const CheckpointerOptions& options, const ErrorReport& report) {
  if (options.supervisor) caf::anon_send(options.supervisor, RankFailed{report});
}

// `work`'s report of what went wrong, or code ok.
template <class Work>
ErrorReport report_of(int rank, std::int64_t step, Work&& work) {
  try {
    work();
    return {ErrorCode::ok, rank, {}, step, {}, {}, {}};
  } catch (const Error& error) {
    return complete(error.report(), rank, step);
  } catch (const std::exception& error) {
    return complete({ErrorCode::internal, -1, {}, -1, "saving a checkpoint", error.what(), {}}, rank, step);
  }
}

/// A disk without room.
class FullDisk : public FileLayer {
 public:
  ssize_t write(int, const void*, std::size_t) override {
    errno = ENOSPC;
    return -1;
  }
};

}  // namespace

// The owner has locked the directory; another rank knows the one that its first part came into.
void CheckpointerState::require_folder() {
  if (writer) return writer->require_folder();
  if (held) require_at(*held, options.directory);
}

void CheckpointerState::open() {
  if (!writer)
    writer = std::make_unique<CheckpointWriter>(options.directory, options.keep_last, files(), under_way, options.lock);
}

void CheckpointerState::save(Self self, const SaveCheckpoint& request) {
  requester = caf::actor_cast<caf::actor>(self->current_sender());
  under_way = request.attempt;
  first_part = request.part && request.part->rank == 0;
  const auto step = request.attempt.step;
  PartSaved saved{{}, request.generation, request.attempt, options.rank, 1, request.best, {}};
  saved.report = report_of(options.rank, step, [&] {
    if (!request.part) throw Error(ErrorCode::internal, "saving a checkpoint", "there is no state to save");
    saved.rank = static_cast<std::int32_t>(request.part->rank);
    saved.ranks = static_cast<std::int32_t>(request.part->ranks);
    std::function<void()> copied;
    if (request.live > 0 && requester) copied = [&] { caf::anon_send(requester, PartCopied{}); };
    FullDisk full;
    auto& disk = std::exchange(disk_full, false) ? full : files();
    require_folder();
    write_checkpoint_part(options.directory, request.attempt, *request.part, disk, request.live, copied);
    if (!writer && !held) held = std::make_unique<HeldFolder>(options.directory);
  });
  end_rank_unless_temporary(saved.report);
  if (saved.ranks > 1) {
    if (options.supervisor) caf::anon_send(options.supervisor, saved);
  } else if (saved.report.code == ErrorCode::ok) {
    answer(publish({request.attempt, saved.ranks, request.best}));
  } else {
    if (writer) writer->give_up(request.attempt);
    answer(failed_save(request.attempt, saved.report));
  }
}

SaveEnded CheckpointerState::publish(const PublishCheckpoint& order) {
  auto ended = failed_save(order.attempt, {});
  ended.report = report_of(options.rank, order.attempt.step, [&] {
    require_folder();
    open();
    auto made = writer->publish(order.attempt, order.ranks, order.best);
    ended.saved = {order.attempt.step, std::move(made.path), static_cast<std::int64_t>(made.bytes), made.seconds,
                   std::move(made.warning)};
  });
  // One that stood in for the rank that has died gives the directory back to that one's successor.
  if (!options.publishes) writer.reset();
  // Nor is it to end where that one turns out to live and to hold the directory: its connection alone had broken.
  if (options.publishes || ended.report.code != ErrorCode::unavailable) end_rank_unless_temporary(ended.report);
  return ended;
}

// A full disk may have room again; a state that cannot be written never will be.
void CheckpointerState::end_rank_unless_temporary(const ErrorReport& report) const {
  if (report.code != ErrorCode::ok && report.code != ErrorCode::io) tell_supervisor(options, report);
}

void CheckpointerState::ended(const SaveEnded& ended) {
  if (ended.attempt != under_way) return;
  if (ended.report.code != ErrorCode::ok && writer) writer->give_up(ended.attempt);
  answer(ended);
}

// Only for this rank, which ends. What it has written stays: the others may make a checkpoint of it, and the
// directory's next owner clears away what is left.
void CheckpointerState::failed(const CheckpointFailed& failed) {
  if (requester && failed.step == under_way.step) caf::anon_send(std::exchange(requester, nullptr), failed);
}

void CheckpointerState::answer(const SaveEnded& ended) {
  if (!requester) return;
  if (ended.report.code == ErrorCode::ok) {
    if (first_part && options.on_saved) options.on_saved(ended.saved);
    caf::anon_send(requester, ended.saved);
  } else {
    caf::anon_send(requester, CheckpointFailed{ended.attempt.step, ended.report});
  }
  requester = nullptr;
}

void CheckpointerState::end(Self self, const caf::exit_msg& exit) {
  // Exit messages overtake others. Sent to itself once more, without that priority, it comes after every save that
  // waits.
  if (std::exchange(ending, true)) {
    self->quit(exit.reason);
  } else {
    caf::anon_send(caf::actor_cast<caf::actor>(self), exit);
  }
}

Checkpointer::behavior_type make_checkpointer(Checkpointer::stateful_pointer<CheckpointerState> self,
                                              CheckpointerOptions options) {
  auto& state = self->state;
  state.options = std::move(options);
  state.under_way = state.options.first;
  if (state.options.publishes) {
    const auto report = report_of(state.options.rank, -1, [&] { state.open(); });
    if (report.code != ErrorCode::ok) tell_supervisor(state.options, report);
  }
  self->set_exit_handler([self](caf::exit_msg& exit) { self->state.end(self, exit); });
  return {[self](const SaveCheckpoint& request) { self->state.save(self, request); },
          [self](const PublishCheckpoint& order) {
            const auto& supervisor = self->state.options.supervisor;
            if (supervisor) caf::anon_send(supervisor, CheckpointPublished{{}, self->state.publish(order)});
          },
          [self](const SaveEnded& ended) { self->state.ended(ended); },
          [self](const CheckpointFailed& failed) { self->state.failed(failed); },
          [self](const InjectFault&) { self->state.disk_full = true; }};
}

Checkpointer spawn_checkpointer(caf::actor_system& system, const CheckpointerOptions& options) {
  auto checkpointer = system.spawn<caf::detached>(make_checkpointer, options);
  if (options.supervisor)
    caf::anon_send(options.supervisor, RegisterCheckpointer{caf::actor_cast<caf::actor>(checkpointer)});
  return checkpointer;
}

}  // namespace troupe
