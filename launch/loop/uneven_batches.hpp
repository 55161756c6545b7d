#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "launch/loop/rank.hpp"

namespace troupe {

/// The rounds of a loop over uneven batches. A round has a batch of each rank, and as a rule a step. A round whose step
/// was interrupted comes again with the same batches. A replacement begins at the others' round, and a resumed run at
/// the checkpoint's. One thread, the rank's.
class UnevenLoop {
 public:
  UnevenLoop(Rank& rank, RankParts& parts) : rank_(&rank), parts_(&parts) {}
  virtual ~UnevenLoop();
  UnevenLoop(const UnevenLoop&) = delete;
  UnevenLoop& operator=(const UnevenLoop&) = delete;

  /// The loop's number among the program's, and the round that runs next.
  DataCursor cursor() const noexcept { return {loop_, round_}; }
  bool is_over() const noexcept { return over_; }  ///< all ranks ran out, or the run is over

 protected:
  /// Begins the next round: `take` has been called with it. False: all ranks ran out, or the run is over. Collective.
  /// Throws Error(usage) for incompatible settings, and Error(state_lost) if a round must come again whose batch is not
  /// kept.
  bool next();
  /// Goes to the batch of that round, perhaps an earlier one, and returns its samples. 0: this rank has run out, and
  /// stays at its last batch; -1: that batch is not kept. `keep_from`: no earlier round will be requested.
  virtual std::int64_t take(std::int64_t round, std::int64_t keep_from) = 0;
  virtual bool has_batch() const = 0;       ///< `take` came to one
  virtual NamedTensors fields() const = 0;  ///< of that batch, as in fields_of

 private:
  enum class Answer : std::uint8_t { run, over, again };
  void check_settings() const;
  void enter();
  void find_round();
  void follow();
  void go_back();
  [[noreturn]] void throw_gone() const;
  std::int64_t keep_from() const;
  Answer begin_round();
  std::optional<double> agree(std::int64_t samples, Answer& answer);
  void note() const;

  Rank* rank_;
  RankParts* parts_;
  std::int64_t loop_ = -1, round_ = 0;
  std::int64_t planned_at_ = 0;  // steps done when round_ was found
  bool over_ = false;
  std::deque<std::pair<std::int64_t, std::int64_t>> begun_;  // rounds that may come again, and the steps done before
};

/// A range over the batches of a rank until all ranks ran out; see Rank::uneven. Goes through them once.
template <class Range>
class UnevenBatches final : private UnevenLoop {
 public:
  using Value = std::decay_t<decltype(*std::begin(std::declval<Range&>()))>;

  UnevenBatches(Rank& rank, RankParts& parts, Range&& batches)
      : UnevenLoop(rank, parts), batches_(std::forward<Range>(batches)) {}

  struct End {};
  class Iterator {
   public:
    explicit Iterator(UnevenBatches* owner) : owner_(owner) { ++*this; }
    const Value& operator*() const { return owner_->kept_[owner_->at_]; }
    const Value* operator->() const { return &**this; }
    Iterator& operator++() {
      ended_ = !owner_->next();
      return *this;
    }
    bool operator==(End) const noexcept { return ended_; }

   private:
    UnevenBatches* owner_;
    bool ended_ = false;
  };
  /// Begins the loop; collective.
  Iterator begin() {
    next_.emplace(std::begin(batches_));
    return Iterator(this);
  }
  /// The end of the range.
  End end() const noexcept { return {}; }

 private:
  std::int64_t take(std::int64_t round, std::int64_t keep_from) override {
    while (taken_ <= round && *next_ != std::end(batches_)) {
      kept_.push_back(**next_);
      ++*next_;
      ++taken_;
      while (kept_.size() > 1 && taken_ - static_cast<std::int64_t>(kept_.size()) < keep_from) kept_.pop_front();
    }
    if (kept_.empty()) return 0;
    const auto first = taken_ - static_cast<std::int64_t>(kept_.size());
    if (round < first) return -1;
    at_ = static_cast<std::size_t>(std::min(round, taken_ - 1) - first);
    return round < taken_ ? samples_of(kept_[at_]) : 0;
  }
  bool has_batch() const override { return !kept_.empty(); }
  NamedTensors fields() const override {
    if constexpr (requires { fields_of(kept_[at_]); }) return fields_of(kept_[at_]);
    return {};
  }

  Range batches_;  // a reference if the range has a name
  std::optional<decltype(std::begin(std::declval<Range&>()))> next_;
  std::deque<Value> kept_;  // the last ones, up to the newest one taken
  std::int64_t taken_ = 0;  // of the range
  std::size_t at_ = 0;      // of kept_: the round's
};

template <class Range>
UnevenBatches<Range> Rank::uneven(Range&& batches) {
  return UnevenBatches<Range>(*this, *parts_, std::forward<Range>(batches));
}

}  // namespace troupe
