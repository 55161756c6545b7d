#pragma once
#include <caf/all.hpp>

#include "actors/messages/messages.hpp"
#include "actors/simulator/history.hpp"
#include "actors/simulator/rank_process.hpp"

namespace troupe::simulator {

class Job;

/// Compute's part of a save, and the answer once the save has ended.
struct SavePart {
  SaveAttempt attempt;
  std::uint64_t generation = 0;
  int rank = 0, ranks = 1;
  SavedPart part;
};
struct SaveAnswered {
  SaveAttempt attempt;
  ErrorReport report;
};
struct DiskWrote {
  SavePart save;
};
struct DiskPublishes {
  PublishCheckpoint order;
};

/// The model of Checkpointer: the same messages, and a disk that takes its time.
struct CheckpointerModel {
  Job* job = nullptr;
  RankProcess* rank = nullptr;
  Draw draw{0, {}};
  SaveAttempt under_way;
  SaveAttempt publishing;  // comes before the end that is heard meanwhile, as on Checkpointer's thread
  Time disk_free{};        // the end of its present work
  bool saved_before = false, publishes = false;  // was rank 0 at its first save, and holds the directory since
  caf::actor requester;

  void answer(const SaveEnded& ended) const;
  void ended(const SaveEnded& ended);
  void written(const SavePart& save);
  void publish(const PublishCheckpoint& order);
};

caf::behavior checkpointer_model(caf::stateful_actor<CheckpointerModel>* self, Job* job, RankProcess* rank);

}  // namespace troupe::simulator

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::simulator::SavePart)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::simulator::SaveAnswered)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::simulator::DiskWrote)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::simulator::DiskPublishes)
