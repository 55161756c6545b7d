#include "strategies/mesh/stage_links.hpp"

#include <array>

namespace troupe {
namespace {

// stage, micro-batch, dtype, dimensions, sizes
constexpr std::size_t kHeader = 12, kSizes = 4;

StageSenderActor::behavior_type stage_sender(c10::Device device) {
  return {[stream = DeviceStream::from_pool(device, false)](const SendToStage& work) {
    const CurrentStream place(stream);
    if (work.ready && work.values.numel() > 0) stream.use(work.values, *work.ready);
    work.communicator->send(work.header, work.destination, "stage header");
    if (work.values.numel() > 0) work.communicator->send(work.values, work.destination, "stage tensor");
    return SentToStage{};
  }};
}

class Waiting {
 public:
  explicit Waiting(std::chrono::nanoseconds& sum) : sum_(sum) {}
  ~Waiting() { sum_ += std::chrono::steady_clock::now() - begin_; }

 private:
  std::chrono::nanoseconds& sum_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

StageLinks::StageLinks(const StrategyContext& context, Communicator& pipeline, bool closed)
    : device_(pipeline.device()) {
  const int ranks = pipeline.world_size(), me = pipeline.rank();
  for (const auto way : {Way::activations, Way::gradients}) {
    auto& mine = direction(way);
    const bool forward = way == Way::activations;
    for (int edge = 0; edge < ranks - 1 + (closed ? 1 : 0); ++edge) {
      const int from = forward ? edge : (edge + 1) % ranks, to = forward ? (edge + 1) % ranks : edge;
      const auto communicator =
          context.split(pipeline, me == from || me == to ? 0 : -1, me == from ? 0 : 1,
                        std::string(forward ? "activations" : "gradients") + " of edge " + std::to_string(edge));
      if (!communicator) continue;
      (me == from ? mine.out : mine.in) = communicator;
    }
    if (mine.out) {
      mine.sender = std::make_unique<OwnActor<StageSenderActor>>(
          context, forward ? "activation sender" : "gradient sender",
          [device = device_](StageSenderActor::pointer) { return stage_sender(device); });
    }
  }
}

void StageLinks::send(Way way, int stage, int micro_batch, const at::Tensor& values) {
  auto& mine = direction(way);
  if (values.dim() > static_cast<std::int64_t>(kHeader - kSizes)) {
    throw Error(ErrorCode::usage, "pipeline",
                "a tensor between two stages has " + std::to_string(values.dim()) + " dimensions",
                "return a tensor of at most " + std::to_string(kHeader - kSizes));
  }
  auto header = at::zeros({static_cast<std::int64_t>(kHeader)}, at::kLong);
  auto* fields = header.data_ptr<std::int64_t>();
  fields[0] = stage;
  fields[1] = micro_batch;
  fields[2] = static_cast<std::int64_t>(values.scalar_type());
  fields[3] = values.dim();
  for (std::int64_t i = 0; i < values.dim(); ++i) fields[kSizes + static_cast<std::size_t>(i)] = values.size(i);
  SendToStage work{mine.out, 1, header, values.detach().contiguous().view(-1), nullptr};
  if (!device_.is_cpu()) {
    work.ready = std::make_shared<DeviceEvent>(device_);
    work.ready->record(DeviceStream::current(device_));
  }
  mine.sender->send(work);
  ++mine.under_way;
}

at::Tensor StageLinks::receive(Way way, int stage, int micro_batch) {
  auto& mine = direction(way);
  const Waiting waiting(waited_);
  const std::pair wanted{stage, micro_batch};
  while (!mine.early.contains(wanted)) {
    auto header = at::empty({static_cast<std::int64_t>(kHeader)}, at::kLong);
    mine.in->recv(header, 0, "stage header");
    const auto* fields = header.data_ptr<std::int64_t>();
    const at::IntArrayRef sizes(fields + kSizes, static_cast<std::size_t>(fields[3]));
    auto values = at::empty(sizes, at::device(device_).dtype(static_cast<at::ScalarType>(fields[2])));
    if (values.numel() > 0) mine.in->recv(values.view(-1), 0, "stage tensor");
    if (!mine.early.emplace(std::pair{static_cast<int>(fields[0]), static_cast<int>(fields[1])}, values).second)
      throw Error(ErrorCode::internal, "pipeline", "a stage's tensor came twice");
  }
  return mine.early.extract(wanted).mapped();
}

void StageLinks::finish() {
  const Waiting waiting(waited_);
  for (auto& mine : directions_) {
    for (; mine.under_way > 0; --mine.under_way) mine.sender->receive<SentToStage>("sending to the next stage");
  }
}

void StageLinks::set_step(std::int64_t step) {
  for (auto& mine : directions_) {
    for (const auto& communicator : {mine.out, mine.in}) {
      if (communicator) communicator->ledger().set_step(step);
    }
  }
}

}  // namespace troupe
