#pragma once
#include <caf/all.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "actors/messages/messages.hpp"
#include "tensor_io/checkpoint/checkpoint_writer.hpp"
#include "tensor_io/files/folder_lock.hpp"

namespace troupe {

/// Writes this rank's part of each checkpoint, and, on the rank that the coordinator chooses, makes a checkpoint of all
/// parts. Answers the sender of SaveCheckpoint with CheckpointSaved or CheckpointFailed, the same on all ranks;
/// training goes on either way. The credit is one: the sender waits for the answer before it sends the next part, so at
/// most one snapshot is in memory. On anon_send_exit it first finishes the write under way and earlier messages; on
/// exit_reason::kill it does not wait.
using Checkpointer =
    caf::typed_actor<caf::reacts_to<SaveCheckpoint>, caf::reacts_to<PublishCheckpoint>, caf::reacts_to<SaveEnded>,
                     caf::reacts_to<CheckpointFailed>, caf::reacts_to<InjectFault>>;

struct CheckpointerOptions {
  std::string directory;
  std::int64_t keep_last = 3;
  int rank = 0;  ///< for reports
  /// The directory is this rank's: locked against other jobs, and opened at once. A failure is a RankFailed now, before
  /// hours that could not be saved. If false, the rank opens it only to publish in the owner's stead.
  bool publishes = true;
  SaveAttempt first;           ///< others may be writing its parts already
  caf::actor supervisor;       ///< leads to the coordinator, and gets RankFailed if the rank cannot go on; may be empty
  FileLayer* files = nullptr;  ///< null: the operating system's; outlives the actor
  std::shared_ptr<FolderLock> lock = nullptr;  ///< on the directory, if the rank has it already
  /// On the rank of the first part: a checkpoint is on disk. On the actor's thread, before the answer.
  std::function<void(const CheckpointSaved&)> on_saved = {};
};

/// Blocks on the disk, so it has a thread that nothing else uses (caf::detached).
struct CheckpointerState {
  using Self = Checkpointer::stateful_pointer<CheckpointerState>;
  const char* name = "checkpointer";
  CheckpointerOptions options;
  std::unique_ptr<CheckpointWriter> writer;
  std::unique_ptr<HeldFolder> held;  // the directory, on a rank that does not own it
  SaveAttempt under_way;
  bool first_part = false;  // of the save under way: ours
  caf::actor requester;     // of the save under way
  bool ending = false;
  bool disk_full = false;  // for the next part (--chaos)

  void open();
  void save(Self self, const SaveCheckpoint& request);
  SaveEnded publish(const PublishCheckpoint& order);
  void ended(const SaveEnded& ended);
  void failed(const CheckpointFailed& failed);
  void end(Self self, const caf::exit_msg& exit);

 private:
  FileLayer& files() const { return options.files ? *options.files : real_files(); }
  void require_folder();
  void answer(const SaveEnded& ended);
  void end_rank_unless_temporary(const ErrorReport& report) const;
};

Checkpointer::behavior_type make_checkpointer(Checkpointer::stateful_pointer<CheckpointerState> self,
                                              CheckpointerOptions options);
/// Spawns it and reports it to `options.supervisor`. The report is sent from here, not by the actor, whose thread may
/// begin late: until then the supervisor's messages to it would be lost.
Checkpointer spawn_checkpointer(caf::actor_system& system, const CheckpointerOptions& options);

}  // namespace troupe
