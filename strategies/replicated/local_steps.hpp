#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/strategy/meetings.hpp"
#include "actors/strategy/own_figures.hpp"
#include "strategies/replicated/replicated_strategy.hpp"

namespace troupe {

/// How often replicas that train by themselves meet, and the step that they take then.
struct OuterOptions {
  std::int64_t every = 100;  ///< inner steps between two outer steps of the same fragment
  double lr = 1;        ///< of the outer optimizer; with 1 and no momentum an outer step takes the mean of the replicas
  double momentum = 0;  ///< Nesterov's
  std::int64_t fragments = 1;  ///< parts of the model that meet one after the other, evenly over `every`
  std::int64_t overlap = 0;    ///< inner steps that go on while a fragment is averaged
  double mixing = 0;  ///< with overlap: the share of a rank's own parameters that stays when the averaged ones arrive

  /// Throws Error(usage) naming the setting.
  void check() const;
};

/// The fragment of each parameter, by `numel`: `count` runs of neighbours, of about equally many elements each. Pure.
std::vector<std::int32_t> cut_fragments(const std::vector<std::int64_t>& numel, std::int64_t count);

/// Ranks train by themselves (inner steps: no gradient leaves the rank). At intervals their parameters meet in an outer
/// step. The mean over ranks of (outer parameters - a rank's parameters) is a gradient to the outer parameters, and all
/// go on from these.
///
/// `local_sgd`: the outer step takes the mean (Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019).
/// `diloco`: SGD with Nesterov momentum (Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language
/// Models", 2023, arXiv 2311.08105); by fragment, and overlapped with inner steps (Douillard et al., "Streaming DiLoCo
/// with overlapping communication", 2025, arXiv 2501.18512).
///
/// The average is one all-reduce by the rank's reducer, through the communication hook. Each rank applies an outer step
/// when its sum is there, between two steps; if a rank is lost meanwhile, some ranks may have it and some not. So outer
/// steps are counted. In a new generation the ranks that are behind take the outer parameters of those ahead. A step
/// that no rank has done is done then.
class LocalSteps final : public ReplicatedStrategy, public Meetings, public OwnFigures {
 public:
  LocalSteps(StrategyContext context, OuterOptions outer);

  bool replicas_equal() const override { return false; }
  void after_update() override { meet(step() + 1); }
  void meet(std::int64_t done) override;
  void finish_pending() override {
    if (under_way_) finish();
  }
  /// The ranks' progress since they met becomes their mean, without an outer step.
  bool hand_over(Optimizer& optimizer, const Parting& parting) override {
    finish_pending();
    return ReplicatedStrategy::hand_over(optimizer, parting);
  }
  NamedTensors strategy_tensors() override;
  std::map<std::string, std::string> state() override;
  void load_state(const std::map<std::string, std::string>& state) override;
  void read_state(const StateReader& state, Optimizer& optimizer) override;
  std::string describe() const override;
  Figures own_figures(std::int64_t done) const override;

  std::int64_t outer_steps() const noexcept { return outer_steps_; }

 protected:
  void joined() override;
  bool replicas_differ_now() const override { return !met_; }
  CommHook* hook() noexcept override { return hook_.get(); }
  NamedTensors hook_state() override { return under_way_ ? hook_before_ : hook_->state(); }

 private:
  struct Fragment {
    std::vector<std::size_t> parameters;  // indices into parameters()
    at::Tensor difference;       // (numel,), the reducer's: outer parameters - this rank's; then the mean over ranks
    at::Tensor outer, momentum;  // (numel,)
    std::int64_t next = 0;       // it is averaged once this many steps are done
    std::shared_ptr<std::vector<BucketView>> plan;
  };
  struct UnderWay {
    std::size_t fragment = 0;
    std::int64_t since = 0, apply_at = 0;  // steps done
  };
  void make_fragments();
  void take_outer_from_parameters(Fragment& fragment);
  /// As at the start of a run.
  void begin_outer();
  void start(std::size_t index, std::int64_t done);
  void finish();
  /// The outer parameters become this rank's, except for a share `kept` of its present ones.
  void take(const Fragment& fragment, double kept);
  void catch_up();
  void move_on(Fragment& fragment, std::int64_t done) const;

  const OuterOptions outer_;
  std::shared_ptr<CommHook> hook_;
  NamedTensors hook_before_;  // its state at the start of the outer step under way, if inner steps go on meanwhile
  std::vector<Fragment> fragments_;
  std::optional<UnderWay> under_way_;
  std::int64_t outer_steps_ = 0;  // of all fragments, in the run
  std::size_t last_ = 0;          // the fragment of the last one
  bool met_ = true;               // all parameters are the outer ones on all ranks
};

/// Makes `local_sgd` and `diloco` known to make_strategy.
void register_local_steps();

}  // namespace troupe
