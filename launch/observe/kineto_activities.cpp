#include "launch/observe/kineto_activities.hpp"

#include <map>

namespace troupe {
namespace {

// Tracks by whatever threads are told apart by, in the order in which they were met.
class NumberedTracks {
 public:
  NumberedTracks(TraceRecorder& recorder, std::string name) : recorder_(recorder), name_(std::move(name)) {}
  TraceTrack& of(std::uint64_t key) {
    auto& track = tracks_[key];
    if (track == nullptr)
      track = &recorder_.track(tracks_.size() == 1 ? name_ : name_ + ", thread " + std::to_string(tracks_.size()));
    return *track;
  }

 private:
  TraceRecorder& recorder_;
  const std::string name_;
  std::map<std::uint64_t, TraceTrack*> tracks_;
};

}  // namespace

void add_activities(const std::vector<KinetoActivity>& activities, TraceRecorder& recorder) {
  NumberedTracks operators(recorder, "operators"), launches(recorder, "launches");
  for (const auto& activity : activities) {
    if (activity.begin_ns < recorder.began_ns()) continue;
    TraceEvent event;
    event.set_name(activity.name);
    event.begin_ns = activity.begin_ns;
    event.end_ns = activity.end_ns;
    event.correlation = activity.kind == KinetoActivity::Kind::operation ? -1 : activity.correlation;
    switch (activity.kind) {
      case KinetoActivity::Kind::operation:
        event.kind = TraceEvent::Kind::operation;
        operators.of(activity.thread).add(event);
        break;
      case KinetoActivity::Kind::launch: {
        event.kind = TraceEvent::Kind::launch;
        auto* actor = activity.thread != 0 ? nullptr : recorder.track_of_thread(activity.resource);
        auto& track = activity.thread != 0 ? operators.of(activity.thread)
                      : actor != nullptr   ? *actor
                                           : launches.of(static_cast<std::uint64_t>(activity.resource));
        track.add(event);
        break;
      }
      case KinetoActivity::Kind::device:
        event.kind = TraceEvent::Kind::kernel;
        event.stream = static_cast<std::int32_t>(activity.resource);
        recorder.track("device").add(event);
        break;
    }
  }
}

}  // namespace troupe
