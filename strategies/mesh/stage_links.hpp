#pragma once
#include <caf/all.hpp>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "actors/strategy/own_actor.hpp"
#include "tensor_io/device/device_stream.hpp"

namespace troupe {

/// The request to a sending actor, and its answer. They stay in the process: tensors go by reference.
struct SendToStage {
  std::shared_ptr<Communicator> communicator;
  int destination = 0;
  at::Tensor header, values;
  std::shared_ptr<DeviceEvent> ready;  ///< on a device: the values are there
};
struct SentToStage {};
using StageSenderActor = caf::typed_actor<caf::replies_to<SendToStage>::with<SentToStage>>;

/// The tensors that the stages of one pipeline send to each other: activations to the next rank of the ring, gradients
/// to the one before.
///
/// Tensors go over the communicator, as all tensors do; CAF would copy them through one thread. A send waits for the
/// receiver, and two neighbours that send to each other would wait for ever. So for each direction a rank has a sending
/// actor, with its own thread and communicator, while compute goes on. A communicator joins two ranks, one of which
/// only sends. Tensors that come before they are wanted are kept.
///
/// On a device a sending actor has a stream as well. If compute's stream waited for the sends, two stages that send to
/// each other would wait for ever there, too.
///
/// One in each generation; the constructor is collective over `pipeline`. Compute's thread.
class StageLinks {
 public:
  /// `closed`: the last rank sends to the first, too, as ranks with several stages need it.
  StageLinks(const StrategyContext& context, Communicator& pipeline, bool closed);

  enum class Way { activations, gradients };
  /// Returns at once. `stage`: the receiving one. The values must not change until `finish`.
  void send(Way way, int stage, int micro_batch, const at::Tensor& values);
  /// Waits for it. Throws the communicator's errors; Error(internal) if something is sent twice.
  at::Tensor receive(Way way, int stage, int micro_batch);
  /// Waits until all sends have arrived; throws the errors of a sending actor's communicator.
  void finish();
  /// The time that `receive` and `finish` have waited since the last call.
  std::chrono::nanoseconds take_waited() { return std::exchange(waited_, std::chrono::nanoseconds(0)); }
  void set_step(std::int64_t step);

 private:
  struct Direction {
    std::shared_ptr<Communicator> out, in;  // two ranks each; null at the end of a line
    std::unique_ptr<OwnActor<StageSenderActor>> sender;
    int under_way = 0;
    std::map<std::pair<int, int>, at::Tensor> early;  // by stage and micro-batch
  };
  Direction& direction(Way way) { return directions_[static_cast<std::size_t>(way)]; }

  c10::Device device_;
  Direction directions_[2];
  std::chrono::nanoseconds waited_{0};
};

}  // namespace troupe
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SendToStage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SentToStage)
