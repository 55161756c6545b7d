#include "actors/compute/step_graphs.hpp"

#include <utility>

namespace troupe {

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
