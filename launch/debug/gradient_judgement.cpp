#include <algorithm>
#include <cmath>
#include <map>

#include "launch/debug/step_judgements.hpp"
#include "launch/process/formatted.hpp"

namespace troupe {
namespace {

using Verdict = DebugVerdict;
using Findings = DebugFindings;

constexpr const char* kPitfalls = "troubleshooting.md#ten-classic-mistakes-of-distributed-training";

using Values = std::vector<double>;

// A rank's gradients one behind the other, in the order of `names`; a parameter without one counts as zeros.
Values joined(const std::vector<InspectedGradient>& gradients, const std::vector<InspectedGradient>& order) {
  std::map<std::string, const Values*> known;
  for (const auto& gradient : gradients) known[gradient.name] = &gradient.values;
  Values all;
  for (const auto& gradient : order) {
    const auto found = known.find(gradient.name);
    if (found != known.end() && found->second->size() == gradient.values.size())
      all.insert(all.end(), found->second->begin(), found->second->end());
    else
      all.resize(all.size() + gradient.values.size());
  }
  return all;
}

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double norm(const Values& values) { return std::sqrt(dot(values, values)); }

// How much of each of `parts` makes `whole`, by least squares; `rest`: the share of `whole` that they do not make.
struct Fit {
  Values weights;
  double rest = 1;
};
Fit fit(const std::vector<Values>& parts, const Values& whole) {
  const auto n = parts.size();
  std::vector<Values> matrix(n, Values(n + 1));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) matrix[i][j] = dot(parts[i], parts[j]);
    matrix[i][n] = dot(parts[i], whole);
  }
  for (std::size_t column = 0; column < n; ++column) {
    std::size_t pivot = column;
    for (std::size_t row = column; row < n; ++row) {
      if (std::abs(matrix[row][column]) > std::abs(matrix[pivot][column])) pivot = row;
    }
    std::swap(matrix[column], matrix[pivot]);
    if (std::abs(matrix[column][column]) < 1e-300) return {};
    for (std::size_t row = 0; row < n; ++row) {
      if (row == column) continue;
      const double factor = matrix[row][column] / matrix[column][column];
      for (std::size_t k = column; k <= n; ++k) matrix[row][k] -= factor * matrix[column][k];
    }
  }
  Fit made;
  auto left = whole;
  for (std::size_t i = 0; i < n; ++i) {
    made.weights.push_back(matrix[i][n] / matrix[i][i]);
    for (std::size_t k = 0; k < left.size(); ++k) left[k] -= made.weights[i] * parts[i][k];
  }
  made.rest = norm(left) / std::max(norm(whole), 1e-300);
  return made;
}

bool are_equal(const Values& weights) {
  const auto [least, most] = std::minmax_element(weights.begin(), weights.end());
  return *most - *least <= 0.02 * std::abs(*most);
}

std::string listed(const Values& weights) {
  std::string text;
  for (const auto weight : weights) text += (text.empty() ? "" : ", ") + formatted("%.3f", weight);
  return text;
}

// What a gradient over ranks may differ by: other shapes of matrices add up in another order.
double tolerance(const InspectionRecord& record) {
  const bool rough = setting(record, "use_amp") == "true" || setting(record, "comm_hook") != "none" ||
                     setting(record, "param_dtype") != "float32" || setting(record, "reduce_dtype") != "float32";
  const bool half = std::any_of(record.model.begin(), record.model.end(), [](const InspectedTensor& tensor) {
    return tensor.dtype == "BFloat16" || tensor.dtype == "Half";
  });
  return rough || half ? 0.05 : 1e-3;
}

std::vector<std::string> sorted_samples(const DebugRun& run) {
  std::vector<std::string> all;
  for (const auto& record : run.records) {
    for (const auto& batch : record.samples) all.insert(all.end(), batch.begin(), batch.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

bool share_samples(const InspectionRecord& a, const InspectionRecord& b) {
  if (a.data_rank == b.data_rank) return false;  // they work on the same ones together
  if (!a.samples.empty() && !a.samples[0].empty() && !b.samples.empty()) return a.samples[0] == b.samples[0];
  const auto mine = joined(a.gradients.local, a.gradients.local), its = joined(b.gradients.local, a.gradients.local);
  return norm(mine) > 0 && mine == its;
}

bool judge_same_samples(const DebugRun& run, Findings& findings) {
  for (std::size_t i = 0; i < run.records.size(); ++i) {
    for (std::size_t j = i + 1; j < run.records.size(); ++j) {
      const auto &a = run.records[i], &b = run.records[j];
      if (!share_samples(a, b)) continue;
      findings.push_back({DebugStep::gradients, Verdict::fail,
                          formatted("ranks %d and %d train on the same samples", a.rank, b.rank),
                          "take batches from rank.loader(dataset), which gives each rank its own", "samples",
                          "troubleshooting.md#2-no-distributed-sampler"});
      return true;
    }
  }
  return false;
}

// Samples that are equal among themselves say nothing about who has which.
bool has_distinct_samples(const DebugRun& run) {
  const auto all = sorted_samples(run);
  return std::adjacent_find(all.begin(), all.end()) == all.end();
}

// The period after which the batches come again in the same order; 0: there is none that was seen whole twice.
std::size_t repeated_after(const std::vector<std::vector<std::string>>& batches) {
  if (batches.size() < 2 || batches[0] == batches[1]) return 0;  // one batch, to overfit it
  for (std::size_t period = 2; 2 * period <= batches.size(); ++period) {
    bool repeats = !batches[0].empty();
    for (std::size_t i = 0; repeats && i + period < batches.size(); ++i) repeats = batches[i] == batches[i + period];
    if (repeats) return period;
  }
  return 0;
}

void judge_order(const DebugRun& run, Findings& findings) {
  const auto* record = first_record(run);
  if (record == nullptr) return;
  const auto period = repeated_after(record->samples);
  if (period == 0) return;
  const bool loader_does = setting(*record, "shuffle") == "false";
  findings.push_back({DebugStep::gradients, Verdict::warn,
                      formatted("the batches come again in the same order after %zu steps", period),
                      loader_does ? "set shuffle to true" : "shuffle them anew in each epoch, as rank.loader does",
                      loader_does ? "shuffle" : "order", "troubleshooting.md#3-forgotten-set_epoch"});
}

void judge_unused(const DebugRuns& runs, Findings& findings) {
  const auto* record = first_record(runs.gradient_alone);
  if (record == nullptr || record->gradients.unused.empty()) return;
  findings.push_back(
      {DebugStep::gradients, Verdict::warn,
       record->gradients.unused[0] + " gets no gradient in the first step" +
           (record->gradients.unused.size() > 1 ? formatted(", nor do %zu others", record->gradients.unused.size() - 1)
                                                : std::string()),
       "use it in forward, or leave it out; a parameter that never gets one is not trained",
       record->gradients.unused[0], "troubleshooting.md#9-unused-parameters"});
}

// Why they differ, by what is seen: the likeliest first.
DebugFinding judge_difference(const DebugRuns& runs, const GradientDifference& difference) {
  const auto &alone = runs.gradient_alone.records[0], &together = runs.gradient_together.records[0];
  DebugFinding finding{DebugStep::gradients, Verdict::fail, {}};
  finding.subject = difference.name;
  finding.page = kPitfalls;
  const auto because = [&](const std::string& cause, const std::string& remedy, const char* page) {
    finding.found = formatted(
                        "the gradient of %s over %d ranks is not that of one rank with the same samples: it differs by "
                        "%.2g of its size%s; ",
                        difference.name.c_str(), runs.gradient_together.ranks, difference.by,
                        difference.others > 0 ? formatted(", as do %d others", difference.others).c_str() : "") +
                    cause;
    finding.remedy = remedy;
    finding.page = page;
    return finding;
  };
  if (runs.other_draw && gradient_difference(runs.gradient_alone, *runs.other_draw)) {
    finding.verdict = Verdict::warn;
    return because(
        "forward draws different random numbers on each rank (dropout), and two runs of one rank differ as well",
        "use modules (torch::nn::Dropout), which debug can switch off, and look again", kPitfalls);
  }
  if (!alone.samples.empty() && sorted_samples(runs.gradient_alone) != sorted_samples(runs.gradient_together))
    return because("the ranks together do not have the samples that one rank has",
                   "take batches from rank.loader(dataset)", "data.md");
  const auto whole = joined(together.gradients.whole, alone.gradients.whole),
             right = joined(alone.gradients.whole, alone.gradients.whole);
  std::vector<Values> parts;
  for (const auto& record : runs.gradient_together.records) {
    if (!record.gradients.local.empty()) parts.push_back(joined(record.gradients.local, alone.gradients.whole));
  }
  if (parts.size() == runs.gradient_together.records.size() && parts.size() > 1) {
    const auto of_right = fit(parts, right), of_whole = fit(parts, whole);
    if (of_right.rest < 1e-3 && !are_equal(of_right.weights) && of_whole.rest < 1e-3 && are_equal(of_whole.weights))
      return because("it averages the ranks' means as if they counted equally: they count " + listed(of_right.weights) +
                         " in the mean over all",
                     "return Loss::sum(total, count), whose elements all count the same", "own_training_loop.md");
    if (of_right.rest < 1e-3) {
      const auto strategy = "strategy " + together.strategy;
      const auto hook = setting(together, "comm_hook");
      const double ratio = norm(whole) / std::max(norm(right), 1e-300);
      return because("each rank's part is right, and the reduction of " + strategy +
                         (hook == "none" ? "" : " with comm_hook " + hook) +
                         (of_whole.rest < 1e-3 ? formatted(" makes %.3g times their mean", ratio)
                                               : std::string(" does not add them up")),
                     "look at its reduction: gradients are averaged over ranks", "write_a_strategy.md");
    }
  }
  if (!together.batch_norms.empty()) {
    finding.verdict = Verdict::warn;
    return because(
        "BatchNorm '" + together.batch_norms[0] + "' takes its statistics from each rank's part of the batch",
        "declare it as troupe::nn::BatchNorm..., with --sync_batchnorm true; or keep it if parts are large",
        "troubleshooting.md#4-batchnorm");
  }
  return because("debug finds no cause: the loss may depend on the size of the batch",
                 "check that the loss and the model treat each sample independently", kPitfalls);
}

}  // namespace

std::optional<GradientDifference> gradient_difference(const DebugRun& alone, const DebugRun& together) {
  const auto *a = first_record(alone), *b = first_record(together);
  if (a == nullptr || b == nullptr) return std::nullopt;
  double largest = 0;
  for (const auto& gradient : a->gradients.whole) largest = std::max(largest, norm(gradient.values));
  std::optional<GradientDifference> first;
  for (const auto& gradient : a->gradients.whole) {
    auto difference = joined(b->gradients.whole, {gradient});
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= gradient.values[i];
    // A gradient that is nothing but rounding (of a bias before a BatchNorm) is measured by the others.
    const double by = norm(difference) / std::max({norm(gradient.values), 1e-3 * largest, 1e-300});
    if (by <= tolerance(*b)) continue;
    if (first)
      ++first->others;
    else
      first = {gradient.name, by, 0};
  }
  return first;
}

void judge_gradients(const DebugRuns& runs, Findings& findings) {
  const auto before = findings.size();
  judge_order(runs.alone, findings);
  judge_unused(runs, findings);
  const auto *alone = first_record(runs.gradient_alone), *together = first_record(runs.gradient_together);
  if (alone == nullptr || together == nullptr || runs.gradient_together.failed()) return;
  if (has_distinct_samples(runs.gradient_alone) && judge_same_samples(runs.gradient_together, findings)) return;
  if (!together->comparable) {
    findings.push_back(
        {DebugStep::gradients,
         Verdict::ok,
         "not compared: with " + together->strategy + " ranks hold different models, or take different steps",
         {},
         {},
         "strategies.md"});
    return;
  }
  if (alone->gradients.whole.empty() || together->gradients.whole.empty()) {
    findings.push_back({DebugStep::gradients, Verdict::warn, "not compared: none of the first steps was applied",
                        "see why steps are skipped", "on_not_finite", "troubleshooting.md#numbers"});
    return;
  }
  if (alone->gradients.step != together->gradients.step) {
    findings.push_back({DebugStep::gradients, Verdict::warn,
                        "not compared: one rank and several skipped different numbers of steps",
                        "set loss_scale_init so low that the first step is applied", "loss_scale_init", "numbers.md"});
    return;
  }
  if (const auto difference = gradient_difference(runs.gradient_alone, runs.gradient_together))
    return findings.push_back(judge_difference(runs, *difference));
  if (findings.size() > before) return;
  findings.push_back({DebugStep::gradients,
                      Verdict::ok,
                      formatted("%d ranks have the gradients of one rank with the same samples, to %.0g of their size",
                                runs.gradient_together.ranks, tolerance(*together)) +
                          (alone->dropouts.empty() ? "" : "; dropout was off: " + alone->dropouts[0]),
                      {},
                      {},
                      "numbers.md"});
}

}  // namespace troupe
