#pragma once
#include <tuple>

namespace troupe {

class Strategy;
class DemandShares;
class DeviceMemory;
class EarlyUpdates;
class Evaluation;
class GraphCapture;
class Handover;
class LateVoting;
class Meetings;
class MicroBatchOrder;
class OwnFigures;
class PeerWaits;
class Placement;
class SavedState;
class Snapshots;

/// A strategy's abilities beyond the calls that all have: for each capability the object that has it, or nothing,
/// perhaps with the reason. Each has a header of its name in this folder. A value; the objects live as long as the
/// strategy.
class StrategyCapabilities {
 public:
  /// One capability: the object that has it, or why it is refused.
  template <class Capability>
  struct Entry {
    Capability* object = nullptr;
    const char* refused = nullptr;  ///< why it is not there, with the strategy as the subject; static
  };
  using Entries =
      std::tuple<Entry<DemandShares>, Entry<DeviceMemory>, Entry<EarlyUpdates>, Entry<Evaluation>, Entry<GraphCapture>,
                 Entry<Handover>, Entry<LateVoting>, Entry<Meetings>, Entry<MicroBatchOrder>, Entry<OwnFigures>,
                 Entry<PeerWaits>, Entry<Placement>, Entry<SavedState>, Entry<Snapshots>>;

  /// The interfaces that the strategy's class derives from.
  static StrategyCapabilities of(Strategy& strategy);
  /// For a strategy around another: these, and those of `inner` that are neither here nor refused here.
  StrategyCapabilities over(const StrategyCapabilities& inner) const;

  /// The object that has the capability; nullptr: there is none.
  template <class Capability>
  Capability* get() const noexcept {
    return std::get<Entry<Capability>>(entries_).object;
  }
  /// Removes the capability; `why` is a literal for the error of an option that needs it.
  template <class Capability>
  void refuse(const char* why) noexcept {
    std::get<Entry<Capability>>(entries_) = {nullptr, why};
  }
  /// Why it is not there; `otherwise` if no reason was given.
  template <class Capability>
  const char* refusal(const char* otherwise) const noexcept {
    const auto* said = std::get<Entry<Capability>>(entries_).refused;
    return said == nullptr ? otherwise : said;
  }
  /// All capabilities, also those that are not there.
  const Entries& entries() const noexcept { return entries_; }

 private:
  Entries entries_;
};

}  // namespace troupe
