#pragma once
#include <caf/all.hpp>

#include <cstdint>
#include <memory>
#include <string>

#include "actors/messages.hpp"
#include "tensor_io/checkpoint_writer.hpp"

namespace troupe {

/// Saves what it is sent and answers the sender with CheckpointSaved or CheckpointFailed; training goes on either way. The credit is one:
/// the sender waits for the answer before it sends the next state, so at most one snapshot is in memory. Asked to end
/// (anon_send_exit), it first finishes the write under way and what was sent before; exit_reason::kill does not wait.
using Checkpointer = caf::typed_actor<caf::reacts_to<SaveCheckpoint>>;

struct CheckpointerOptions {
  std::string directory;
  std::int64_t keep_last = 3;
  int rank = 0;                ///< for reports
  caf::actor supervisor;       ///< gets RankFailed where the rank cannot go on; may be empty
  FileLayer* files = nullptr;  ///< null: the operating system's; outlives the actor
};

/// Blocks on the disk, so it has a thread of its own: system.spawn<caf::detached>(make_checkpointer, options). Nothing else touches it.
/// A directory that cannot be used is a RankFailed at once, before hours of training that could not be saved.
struct CheckpointerState {
  const char* name = "checkpointer";
  CheckpointerOptions options;
  std::unique_ptr<CheckpointWriter> writer;
  bool ending = false;

  void open();
  void save(Checkpointer::stateful_pointer<CheckpointerState> self, const SaveCheckpoint& request);
  void end(Checkpointer::stateful_pointer<CheckpointerState> self, const caf::exit_msg& exit);
};

Checkpointer::behavior_type make_checkpointer(Checkpointer::stateful_pointer<CheckpointerState> self, CheckpointerOptions options);

}  // namespace troupe
