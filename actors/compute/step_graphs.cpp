#include "actors/compute/step_graphs.hpp"

#include <utility>

namespace troupe {

StepGraphs::Turn StepGraphs::next(const std::string& kind, std::uint64_t fit) {
  std::erase_if(old_, [](const Old& old) { return old.over.done(); });
  if (fit != fit_) forget();
  fit_ = fit;
  const auto what = kinds_.next(kind);
  return {what, what == GraphKinds::Turn::run ? nullptr : &graphs_[kind]};
}

void StepGraphs::drop(const std::string& kind) {
  graphs_.erase(kind);
  kinds_.drop(kind);
}

void StepGraphs::forget() {
  if (!graphs_.empty()) {
    old_.push_back({std::exchange(graphs_, {}), DeviceEvent(stream.device())});
    old_.back().over.record(DeviceStream::current(stream.device()));
  }
  kinds_.forget();
}

StreamBetween::StreamBetween(const DeviceStream& stream)
    : outer_(DeviceStream::current(stream.device())),
      stream_(stream),
      before_(stream.device()),
      after_(stream.device()) {
  before_.record(outer_);
  stream_.wait(before_);
  place_.emplace(stream_);
}

StreamBetween::~StreamBetween() {
  place_.reset();
  try {
    after_.record(stream_);
    outer_.wait(after_);
  } catch (
      const std::exception&) {  // NOLINT(bugprone-empty-catch): the device has failed, as the next call on it will say
  }
}

}  // namespace troupe
