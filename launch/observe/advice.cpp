#include "launch/observe/advice.hpp"

#include <algorithm>
#include <cmath>

#include "launch/process/formatted.hpp"

namespace troupe {
namespace {

constexpr double kCommunication = 0.30;  // of a step
constexpr double kStarving = 0.10;       // of a step waited for data
constexpr double kImbalance = 0.20;      // slowest over mean, less one
constexpr double kConcernMs = 1;         // a smaller difference is nobody's concern
constexpr double kSmallBucketMib = 4, kManyBuckets = 8;
constexpr double kCheckpoint = 0.05, kValidation = 0.25, kSkipped = 0.01, kStalled = 0.05;

constexpr const char* kMoreIntervals = "run longer, or lower log_interval";

struct Weighed {
  double share;  // of a step that it costs, for the order
  Advice advice;
};

void communication(const RunNumbers& n, std::vector<Weighed>& found) {
  if (n.world_size == 1 || n.communication() <= kCommunication) return;
  std::string remedy =
      "let each rank do more between two reductions (a larger batch_size, grad_accum_steps), send less (--comm_hook "
      "bf16)";
  if (n.collectives > n.exposed) remedy += ", gather earlier or keep more (FSDP's prefetch and reshard settings)";
  if (n.imbalance > kImbalance)
    remedy = "make the ranks equal first, see below: the others wait for the slowest one; then " + remedy;
  found.push_back({n.communication(),
                   {"communication", true,
                    formatted("Compute waits for communication %.0f %% of a step, more than %.0f %%; at least %.0f %% "
                              "of the reducer's %.1f ms in collectives is hidden behind compute.",
                              100 * n.communication(), 100 * kCommunication, 100 * n.overlap, n.reduce_ms),
                    remedy}});
}

void loader(const RunNumbers& n, std::vector<Weighed>& found) {
  if (n.data <= kStarving || n.loader_queue == 0) return;  // 0: the training thread makes them, of data in memory
  found.push_back(
      {n.data,
       {"loader", true,
        formatted(
            "The loader is too slow: compute waits for data %.0f %% of a step, and %.1f batches are ready on average.",
            100 * n.data, n.loader_queue),
        "more loader threads and batches ahead (num_workers, prefetch), or data that takes less decoding"}});
}

void ranks(const RunNumbers& n, std::vector<Weighed>& found) {
  if (n.ranks.size() < 2 || n.imbalance <= kImbalance || n.imbalance * n.step_ms < kConcernMs) return;
  const auto slowest =
      std::max_element(n.ranks.begin(), n.ranks.end(),
                       [](const SectionTimes& a, const SectionTimes& b) { return a.total_ms() < b.total_ms(); });
  const auto r = static_cast<std::size_t>(slowest - n.ranks.begin());
  const auto n_ranks = static_cast<float>(n.ranks.size());
  SectionTimes mean;
  for (const auto& rank : n.ranks) {
    mean.data_ms += rank.data_ms / n_ranks;
    mean.forward_ms += rank.forward_ms / n_ranks;
    mean.backward_ms += rank.backward_ms / n_ranks;
  }
  const std::pair<float, const char*> sections[] = {{slowest->data_ms - mean.data_ms, "data"},
                                                    {slowest->forward_ms - mean.forward_ms, "forward"},
                                                    {slowest->backward_ms - mean.backward_ms, "backward"}};
  const auto worst =
      std::max_element(std::begin(sections), std::end(sections), [](auto& a, auto& b) { return a.first < b.first; });
  const auto host = r < n.hosts.size() ? " (" + n.hosts[r] + ")" : std::string();
  found.push_back(
      {static_cast<double>(slowest->total_ms() - mean.total_ms()) / std::max(1e-9, n.step_ms),
       {"ranks", true,
        "Rank " + std::to_string(r) + host +
            formatted(
                " takes %.1f ms of its own for a step, %.0f %% more than the mean rank, most of the difference in %s; "
                "the "
                "others wait for it.",
                static_cast<double>(slowest->total_ms()),
                100 * static_cast<double>(slowest->total_ms() - mean.total_ms()) / static_cast<double>(mean.total_ms()),
                worst->second),
        "look for other work, heat or a slower disk on that host, or give it fewer slots in the host list"}});
}

void buckets(const RunNumbers& n, std::vector<Weighed>& found) {
  if (n.world_size == 1 || n.buckets == 0) return;
  if (n.buckets >= kManyBuckets && n.bucket_mib < kSmallBucketMib) {
    found.push_back({n.exposed / 2,
                     {"buckets", true,
                      formatted("A step has %.0f buckets of %.2f MiB: each costs a collective's start on every rank.",
                                n.buckets, n.bucket_mib),
                      "raise bucket_cap_mb (25 is the default)"}});
  }
  if (n.buckets < 1.5 && n.bucket_mib > 1 && n.exposed > 0.10) {
    found.push_back(
        {n.exposed / 2,
         {"buckets", true,
          formatted("All gradients (%.1f MiB) are one bucket, so nothing is reduced while backward goes on.",
                    n.bucket_mib),
          formatted("lower bucket_cap_mb, to %.1f say, so that there are several", n.bucket_mib / 4)}});
  }
}

void scaling(const RunNumbers& n, const RunNumbers* baseline, std::vector<Weighed>& found) {
  const auto efficiency = scaling_efficiency(n, baseline);
  if (!efficiency) return;
  const auto [low, high] = usual_efficiency(n.world_size);
  const bool unsure = efficiency->measured && !can_compare_speed(n, *baseline);
  const bool poor = efficiency->value < low && !unsure;
  std::string finding = formatted("Scaling efficiency with %d ranks is %s%.0f %%", n.world_size,
                                  efficiency->measured ? "" : "at best ", 100 * efficiency->value);
  finding += efficiency->measured
                 ? formatted(" (measured against the run with %d); %.0f-%.0f %% is usual.",
                             efficiency->baseline_world_size, 100 * low, 100 * high)
                 : formatted(" (the share of a step without exposed communication); %.0f-%.0f %% is usual.", 100 * low,
                             100 * high);
  std::string remedy;
  if (unsure) {
    finding.back() = ';';
    finding += std::string(" ") + kTooFewIntervals + ".";
    remedy = kMoreIntervals;
  } else if (poor) {
    remedy = !found.empty() && found.front().advice.problem ? "the other advice first; " : "";
    remedy += efficiency->measured ? "more cores or hosts, since ranks on one host share its memory and cores"
                                   : "--baseline RUN with a run of one rank measures it";
  }
  found.push_back({poor ? 0.01 : -1, {"scaling", poor, finding, remedy}});
}

void others(const RunNumbers& n, std::vector<Weighed>& found) {
  if (n.checkpoint > kCheckpoint) {
    found.push_back(
        {n.checkpoint,
         {"checkpoints", true, formatted("Saving holds compute up for %.0f %% of the time.", 100 * n.checkpoint),
          "save less often (save_every), or to a faster disk: a save waits for the one before it"}});
  }
  if (n.validation > kValidation) {
    found.push_back({n.validation,
                     {"validation", true, formatted("Validation takes %.0f %% of the time.", 100 * n.validation),
                      "raise validate_every"}});
  }
  if (n.skipped > kSkipped) {
    found.push_back(
        {n.skipped,
         {"skipped steps", true, formatted("%.1f %% of the steps were computed and not applied.", 100 * n.skipped),
          "see the log lines that name rank and parameter; lower lr, clip with clip_norm"}});
  }
  if (n.membership_changes > 0) {
    const double share = n.wall_s > 0 ? n.stalled_s / n.wall_s : 0;
    found.push_back(
        {share > kStalled ? share : -1,
         {"failures", share > kStalled,
          formatted("The membership changed %lld time%s, and the job stood still for %.1f s, %.1f %% of the run.",
                    static_cast<long long>(n.membership_changes), n.membership_changes == 1 ? "" : "s", n.stalled_s,
                    100 * share),
          share > kStalled ? "--spares N: processes that wait and take a dead rank's place at once" : ""}});
  }
}

}  // namespace

std::pair<double, double> usual_efficiency(int world_size) noexcept {
  const double at = std::clamp((std::log2(std::max(2, world_size)) - 1) / 2, 0.0, 1.0);  // 0 at 2 ranks, 1 at 8
  return {0.90 - 0.10 * at, 0.95 - 0.05 * at};
}

std::optional<ScalingEfficiency> scaling_efficiency(const RunNumbers& run, const RunNumbers* baseline) {
  if (run.world_size < 2 || run.intervals == 0) return std::nullopt;
  if (baseline != nullptr) {
    if (baseline->world_size < 1 || baseline->world_size == run.world_size || baseline->samples_per_second <= 0)
      return std::nullopt;
    return ScalingEfficiency{
        run.samples_per_second / run.world_size / (baseline->samples_per_second / baseline->world_size), true,
        baseline->world_size};
  }
  if (run.step_ms <= 0) return std::nullopt;
  // Exposed communication holds the wait for slower ranks, too: no need to count these a second time.
  return ScalingEfficiency{std::max(0.0, 1 - run.communication()), false, 1};
}

std::vector<Advice> advise(const RunNumbers& run, const RunNumbers* baseline) {
  std::vector<Weighed> found;
  if (run.intervals == 0) {
    return {
        {"records", true, "There is no log interval in the records, so there is nothing to judge.", kMoreIntervals}};
  }
  communication(run, found);
  loader(run, found);
  ranks(run, found);
  buckets(run, found);
  others(run, found);
  std::stable_sort(found.begin(), found.end(), [](const Weighed& a, const Weighed& b) { return a.share > b.share; });
  scaling(run, baseline, found);
  std::vector<Advice> advice;
  advice.reserve(found.size() + 1);
  for (auto& item : found) advice.push_back(std::move(item.advice));
  if (run.intervals < 3) {
    advice.push_back({"records", false,
                      formatted("Only %lld log interval%s could be used: take the numbers with care.",
                                static_cast<long long>(run.intervals), run.intervals == 1 ? "" : "s"),
                      kMoreIntervals});
  }
  return advice;
}

}  // namespace troupe
