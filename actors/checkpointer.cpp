#include "actors/checkpointer.hpp"

#include <exception>
#include <utility>

#include "tensor_io/error.hpp"

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

}  // namespace

void CheckpointerState::open() {
  try {
    writer = std::make_unique<CheckpointWriter>(options.directory, options.keep_last, options.files ? *options.files : real_files());
  } catch (const Error& error) {
    tell_supervisor(options, complete(error.report(), options.rank, -1));
  } catch (const std::exception& error) {
    tell_supervisor(options,
                    complete({ErrorCode::internal, -1, {}, -1, "opening the checkpoint directory", error.what(), {}}, options.rank, -1));
  }
}

void CheckpointerState::save(Checkpointer::stateful_pointer<CheckpointerState> self, const SaveCheckpoint& request) {
  const auto requester = caf::actor_cast<caf::actor>(self->current_sender());
  auto answer = [&](auto message) {
    if (requester) caf::anon_send(requester, std::move(message));
  };
  const std::int64_t step = request.state ? request.state->step : -1;
  try {
    if (!request.state) throw Error(ErrorCode::internal, "saving a checkpoint", "there is no state to save");
    if (!writer) throw Error(ErrorCode::io, "saving a checkpoint", "the checkpoint directory could not be opened");
    auto saved = writer->save(*request.state, request.best);
    answer(CheckpointSaved{step, std::move(saved.path), static_cast<std::int64_t>(saved.bytes), saved.seconds, std::move(saved.warning)});
  } catch (const Error& error) {
    const auto report = complete(error.report(), options.rank, step);
    answer(CheckpointFailed{step, report});
    // A full disk may have room again; a state that cannot be written never will be.
    if (error.code() != ErrorCode::io) tell_supervisor(options, report);
  } catch (const std::exception& error) {
    const auto report = complete({ErrorCode::internal, -1, {}, -1, "saving a checkpoint", error.what(), {}}, options.rank, step);
    answer(CheckpointFailed{step, report});
    tell_supervisor(options, report);
  }
}

void CheckpointerState::end(Checkpointer::stateful_pointer<CheckpointerState> self, const caf::exit_msg& exit) {
  // Exit messages overtake others. Sent to itself once more, without that priority, it comes after every save that waits.
  if (std::exchange(ending, true)) {
    self->quit(exit.reason);
  } else {
    caf::anon_send(caf::actor_cast<caf::actor>(self), exit);
  }
}

Checkpointer::behavior_type make_checkpointer(Checkpointer::stateful_pointer<CheckpointerState> self, CheckpointerOptions options) {
  self->state.options = std::move(options);
  self->state.open();
  self->set_exit_handler([self](caf::exit_msg& exit) { self->state.end(self, exit); });
  return {[self](const SaveCheckpoint& request) { self->state.save(self, request); }};
}

}  // namespace troupe
