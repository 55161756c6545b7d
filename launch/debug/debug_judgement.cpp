#include "launch/debug/debug_judgement.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "launch/debug/step_judgements.hpp"
#include "launch/process/formatted.hpp"

namespace troupe {
namespace {

using Verdict = DebugVerdict;
using Findings = DebugFindings;

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// ---- Errors that end a run.

struct Home {
  const char* part;  // of the error
  DebugStep step;
  const char* page;
};

// By what an error says: where it belongs, whichever run it ended. The first that fits.
constexpr Home kHomes[] = {
    {"data_dir", DebugStep::environment, "data.md"},
    {"no thread can be started", DebugStep::environment, "troubleshooting.md#starting"},
    {"the program differs from rank ", DebugStep::environment, "troubleshooting.md#starting"},
    {"the config differs from rank ", DebugStep::environment, "troubleshooting.md#starting"},
    {"drew from a data set", DebugStep::tensors, "troubleshooting.md#2-no-distributed-sampler"},
    {"with arguments from the", DebugStep::tensors, "troubleshooting.md#5-tensors-on-different-devices"},
    {"must have the same dtype", DebugStep::tensors, "writing_a_model.md"},
    {"same device", DebugStep::tensors, "troubleshooting.md#5-tensors-on-different-devices"},
    {"build the same model on every rank", DebugStep::tensors,
     "troubleshooting.md#7-no-seed-or-the-same-one-everywhere"},
    {"sync_batchnorm", DebugStep::gradients, "troubleshooting.md#4-batchnorm"},
    {"every rank must launch the same collectives", DebugStep::group, "troubleshooting.md#a-rank-hangs-or-seems-to"},
    {"left the training loop", DebugStep::group, "troubleshooting.md#a-rank-hangs-or-seems-to"},
};

// `rank 0, compute, step 0: distribute: cause`, or `device: cause`: what was being done, or the setting.
std::string operation_of(const std::string& error) {
  auto begin = error.starts_with("rank ") ? error.find(": ") : 0;
  if (begin == std::string::npos) return {};
  if (begin > 0) begin += 2;
  const auto end = error.find(": ", begin);
  return end == std::string::npos || end - begin > 40 ? std::string() : error.substr(begin, end - begin);
}

// In a run of one rank what is not listed is that rank's, in one of several it is the group's.
DebugFinding finding_of_error(const DebugRun& run) {
  DebugFinding finding{run.ranks == 1 ? DebugStep::one_rank : DebugStep::group, Verdict::fail, run.error};
  finding.page = "troubleshooting.md";
  finding.subject = operation_of(run.error);
  if (run.timed_out) {
    finding.found = std::to_string(run.ranks) + (run.ranks == 1 ? " rank" : " ranks") +
                    " did not finish the steps in time" + (run.error.empty() ? "" : ": " + run.error);
    finding.remedy = "look where it waits, or give it more seconds with --timeout";
    finding.page = "troubleshooting.md#a-rank-hangs-or-seems-to";
  } else if (run.error.empty()) {
    finding.found = "the program ended with " + run.ending + " and printed no error";
  }
  if (finding.subject == "device") {
    finding.step = DebugStep::environment;
    finding.page = "troubleshooting.md#6-a-hard-coded-device";
  }
  for (const auto& home : kHomes) {
    if (!contains(run.error, home.part)) continue;
    finding.step = home.step;
    finding.page = home.page;
    break;
  }
  if (run.ranks > 1 && contains(run.error, "not finite")) {
    finding.step = DebugStep::gradients;
    finding.page = "troubleshooting.md#numbers";
  }
  if (const auto remedy = finding.found.rfind("; "); remedy != std::string::npos && !run.timed_out) {
    finding.remedy = finding.found.substr(remedy + 2);
    finding.found.resize(remedy);
  }
  return finding;
}

// ---- 1. One rank.

DebugFinding judge_loss(const std::vector<double>& losses) {
  DebugFinding finding{DebugStep::one_rank, Verdict::ok, {}};
  finding.page = "first_run.md";
  if (losses.empty()) {
    finding.verdict = Verdict::fail;
    finding.found = "no step was made";
    finding.remedy = "the loop calls rank.backward and rank.step";
    return finding;
  }
  const auto part = std::max<std::size_t>(1, losses.size() / 4);
  const std::span all(losses), begin = all.first(part), end = all.last(part);
  const double first = std::accumulate(begin.begin(), begin.end(), 0.0) / static_cast<double>(part),
               last = std::accumulate(end.begin(), end.end(), 0.0) / static_cast<double>(part);
  // Of 20 that are noise it is so once in 252 times.
  const bool all_higher = *std::min_element(end.begin(), end.end()) > *std::max_element(begin.begin(), begin.end());
  finding.found = formatted("the loss is %.4g at first and %.4g after %zu steps", first, last, losses.size());
  if (std::any_of(losses.begin(), losses.end(), [](double loss) { return loss == kNotFinite; })) {
    finding.verdict = Verdict::fail;
    finding.found = "the loss is not finite";
    finding.remedy = "lower lr, or clip with clip_norm";
    finding.subject = "lr";
    finding.page = "troubleshooting.md#numbers";
  } else if (losses.size() < 4) {
    finding.found = formatted("%zu steps were made, too few to see the loss fall", losses.size());
  } else if (all_higher && last > first + 0.1 * std::abs(first)) {
    finding.verdict = Verdict::fail;
    finding.found = formatted("the loss rises, from %.4g to %.4g in %zu steps", first, last, losses.size());
    finding.remedy = "lower lr; look at the target and the sign of the loss";
    finding.subject = "lr";
  } else if (last >= first) {
    finding.verdict = Verdict::warn;
    finding.found = formatted("the loss does not fall, from %.4g to %.4g in %zu steps", first, last, losses.size());
    finding.remedy = "make one rank learn before you use several: overfit a few samples";
    finding.subject = "lr";
  }
  return finding;
}

void judge_one_rank(const DebugRuns& runs, Findings& findings) {
  const auto* record = first_record(runs.alone);
  if (runs.alone.failed()) return findings.push_back(finding_of_error(runs.alone));
  if (record == nullptr) {
    findings.push_back({DebugStep::one_rank,
                        Verdict::fail,
                        "the program recorded nothing",
                        "use a program whose main calls troupe::main or troupe::run, built with this version",
                        {},
                        "own_training_loop.md"});
    return;
  }
  findings.push_back(judge_loss(record->losses));
  const auto resume = record->put_aside.find("resume");
  if (resume == record->put_aside.end() || record->keeps_checkpoints) return;
  findings.push_back({DebugStep::one_rank, Verdict::fail,
                      "resume is '" + resume->second + "', and this program keeps no checkpoints",
                      "call rank.keep_checkpoints(optimizer) before rank.loader(dataset)", "resume",
                      "troubleshooting.md#10-saving-on-all-ranks"});
}

// ---- 2 and 3. Hosts and group.

bool is_of_group(const HostFinding& finding) {
  return finding.check == "collective" || finding.check == "pace" || finding.check == "gradients";
}

void judge_hosts(const DebugRuns& runs, DebugStep step, Findings& findings) {
  int looked = 0;
  for (const auto& seen : runs.hosts) {
    if (is_of_group(seen) != (step == DebugStep::group)) continue;
    ++looked;
    if (seen.verdict == "ok") continue;
    findings.push_back({step, seen.verdict == "warn" ? Verdict::warn : Verdict::fail,
                        (seen.host.empty() ? "" : seen.host + ": ") + seen.found, seen.remedy, seen.check,
                        "cluster.md"});
  }
  if (looked > 0 && std::none_of(findings.begin(), findings.end(), [&](const auto& f) { return f.step == step; }))
    findings.push_back({step, Verdict::ok, std::to_string(looked) + " checks found nothing", {}, {}, "cluster.md"});
}

void judge_group(const DebugRuns& runs, Findings& findings) {
  for (const auto* run : {&runs.together, &runs.gradient_together}) {
    if (!run->failed()) continue;
    findings.push_back(finding_of_error(*run));
    return;
  }
  judge_hosts(runs, DebugStep::group, findings);
  const auto* record = first_record(runs.together);
  if (record == nullptr) return;
  findings.push_back(
      {DebugStep::group,
       Verdict::ok,
       formatted("%d ranks made %zu steps by %s", runs.together.ranks, record->losses.size(), record->strategy.c_str()),
       {},
       {},
       "how_it_works.md"});
}

}  // namespace

const InspectionRecord* first_record(const DebugRun& run) { return run.records.empty() ? nullptr : &run.records[0]; }

std::string setting(const InspectionRecord& record, const std::string& name) {
  const auto found = record.settings.find(name);
  return found == record.settings.end() ? std::string() : found->second;
}

bool DebugRun::records_end() const noexcept {
  return static_cast<int>(records.size()) == ranks &&
         std::all_of(records.begin(), records.end(), [](const auto& record) { return record.ended; });
}

std::vector<DebugFinding> judge(const DebugRuns& runs) {
  Findings findings;
  judge_one_rank(runs, findings);
  judge_hosts(runs, DebugStep::environment, findings);
  if (!runs.alone.failed()) judge_group(runs, findings);
  judge_tensors(runs, findings);
  judge_gradients(runs, findings);
  judge_efficiency(runs, findings);
  // A step that could not be looked at says which one failed.
  for (int number = 1; number <= kDebugSteps; ++number) {
    const auto step = static_cast<DebugStep>(number);
    if (std::any_of(findings.begin(), findings.end(), [&](const auto& finding) { return finding.step == step; }))
      continue;
    const auto failed =
        std::find_if(findings.begin(), findings.end(), [](const auto& f) { return f.verdict == Verdict::fail; });
    findings.push_back({step, Verdict::skipped,
                        failed == findings.end()
                            ? "not looked at"
                            : formatted("not checked: step %d failed", static_cast<int>(failed->step))});
  }
  std::stable_sort(findings.begin(), findings.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return findings;
}

}  // namespace troupe
