#include "actors/rank/save_relay.hpp"

namespace troupe {

void SaveRelay::part_saved(const PartSaved& part) {
  if (!ended_ || ended_->attempt != part.attempt) part_ = part;
}

void SaveRelay::end(const SaveEnded& ended) {
  if (part_ && part_->attempt == ended.attempt) part_.reset();
  ended_ = ended;
  tell_checkpointer(ended);
}

void SaveRelay::fail(const ErrorReport& reason) {
  if (part_) tell_checkpointer(CheckpointFailed{part_->attempt.step, reason});
  part_.reset();
}

}  // namespace troupe
