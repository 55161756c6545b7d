#include "tests/differential/compare.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "tests/differential/reference.hpp"
#include "tests/support/scratch_directory.hpp"

namespace troupe::differential {

double tolerance(const Job& job) {
  if (job.amp == "bf16") return 0.1;  // LibTorch's own layers add up in another order, in bf16
  if (job.comm_hook == "bf16" || job.odd == "bfloat16") return 3e-2;
  if (job.comm_hook == "fp16" || job.amp == "fp16") return 5e-3;
  if (job.dtype != "float64" || job.comm_hook == "powersgd") return 3e-3;
  if (job.optimizer == "torch.RMSprop") return 1e-6;  // it divides by roots of sums that are small at first
  // Statistics of one sample: gradients cancel to rounding, which Adam divides by as little; 100 times more each step.
  if (job.norm == "batch" && job.samples == 1) return 1e-6;
  return job.optimizer.ends_with("sgd") || job.optimizer.ends_with("SGD") ? 1e-8 : 1e-7;
}

namespace {

std::string text_of(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.12g", value);
  return text;
}

/// The share by which numbers of the job are rounded in each step.
double rounding(const Job& job) {
  if (job.odd == "bfloat16") return 0x1p-7;  // a step rounds such a parameter and its moment
  if (job.amp == "bf16" || job.comm_hook == "bf16") return 0x1p-8;
  if (job.amp == "fp16" || job.comm_hook == "fp16") return 0x1p-10;
  // What each rank owes is large next to the mean, and grows tenfold a step in a direction that no gradient has.
  if (job.comm_hook == "powersgd") return 0x1p-18;
  return job.dtype == "float64" ? 0x1p-50 : 0x1p-22;
}

bool apart(double a, double b, double tolerance, double floor) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) != std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a != b;
  return std::abs(a - b) > tolerance * std::max(std::abs(a), std::abs(b)) + floor;
}

std::string difference(const std::string& name, const at::Tensor& found, const at::Tensor& right, double tolerance) {
  if (found.sizes() != right.sizes()) return name + " has another shape";
  if (right.numel() == 0) return {};
  const auto a = found.to(at::kDouble).flatten(), b = right.to(at::kDouble).flatten();
  if (!a.isfinite().all().item<bool>() && b.isfinite().all().item<bool>()) return name + " is not finite";
  const double most = (a - b).abs().max().item<double>(),
               size = std::max(b.abs().max().item<double>(), tolerance < 1e-6 ? 1e-6 : std::max(tolerance, 1e-2));
  if (most <= tolerance * size) return {};
  const auto at = (a - b).abs().argmax().item<std::int64_t>();
  return name + "[" + std::to_string(at) + "] is " + text_of(a[at].item<double>()) + ", right is " +
         text_of(b[at].item<double>());
}

/// For a person who looks at one job with --log.
void print_steps(const Outcome& found, const Outcome& right) {
  for (const auto& [number, step] : right.steps) {
    const auto seen = found.steps.find(number);
    const auto mine = seen == found.steps.end() ? StepSeen() : seen->second;
    std::fprintf(stderr, "step %ld: loss %.15g, right %.15g; norm %.15g, right %.15g\n", static_cast<long>(number),
                 mine.loss, step.loss, mine.norm, step.norm);
  }
}

/// A strategy that shards keeps no state of a parameter without elements.
bool is_of_empty(const Job& job, const std::string& name) {
  return job.odd == "empty" && name.starts_with("optimizer.odd.");
}

/// The reference in f64, with its gradients off by `rounding`.
Outcome rounded_otherwise(const Job& job, const Order& order, double rounding, std::uint64_t noise) {
  auto exact = job;
  exact.exact = job.amp != "fp16";  // which f64 does not do
  auto outcome = reference(exact, order, rounding, noise);
  for (auto& [number, step] : outcome.steps)
    step.type = step.type == "Double" && job.dtype != "float64" ? "Float" : step.type;
  return outcome;
}

}  // namespace

std::string difference(const Job& job, const Outcome& found, const Outcome& right) {
  const double t = tolerance(job), floor = t < 1e-6 ? 1e-12 : t * 1e-2;
  for (const auto& [number, step] : right.steps) {
    if (job.vote == "late") break;  // whose reports are of the step before; weights and held-out losses are compared
    const auto seen = found.steps.find(number);
    const auto of = "step " + std::to_string(number) + ": ";
    if (seen == found.steps.end()) return of + "it was not run";
    const auto& mine = seen->second;
    const auto differs = [&](const char* what, double a, double b) {
      return of + what + " is " + text_of(a) + ", right is " + text_of(b);
    };
    if (mine.committed != step.committed)
      return of + (step.committed ? "it was skipped" : "it was applied, and should not be");
    if (mine.scale >= 0 && mine.scale != step.scale) return differs("the loss scale", mine.scale, step.scale);
    if (apart(mine.rate, step.rate, 1e-12, 0)) return differs("the rate", mine.rate, step.rate);
    if (mine.samples >= 0 && mine.samples != step.samples) return differs("samples", mine.samples, step.samples);
    if (!step.committed) continue;
    const bool replayed = job.graphs && mine.type.empty();  // its forward was not called
    if (!replayed && mine.type != step.type)
      return of + "the model's output is " + mine.type + ", right is " + step.type;
    if (apart(mine.loss, step.loss, t, floor)) return differs("the loss", mine.loss, step.loss);
    if (t < 1e-6 && mine.correct >= 0 && mine.correct != step.correct)
      return differs("what was right", mine.correct, step.correct);
    if (job.clip_norm > 0 && apart(mine.norm, step.norm, t, floor))
      return differs("the gradient's norm", mine.norm, step.norm);
  }
  if (found.steps.size() > right.steps.size())
    return "it ran " + std::to_string(found.steps.size()) + " steps, right are " + std::to_string(right.steps.size());
  // Of replicas that differ the reference loses one before the validation of that step, which may have been before.
  const bool may_be_before = trains_apart(job.strategy) && kills(job) && job.kill_at != "validate";
  for (const auto& [step, loss] : right.held_out) {
    if (may_be_before && step == hurt_step_of(job) && step < right.held_out.rbegin()->first) continue;
    const auto seen = found.held_out.find(step);
    const auto of = "after step " + std::to_string(step) + " the held-out loss is ";
    if (seen == found.held_out.end()) return of + "not in the records";
    const bool both_infinite = !std::isfinite(seen->second) && !std::isfinite(loss);  // null in JSON
    if (!both_infinite && apart(seen->second, loss, t, floor))
      return of + text_of(seen->second) + ", right is " + text_of(loss);
  }
  if (found.held_out.size() > right.held_out.size())
    return "there are " + std::to_string(found.held_out.size()) + " validations, right are " +
           std::to_string(right.held_out.size());
  if (found.states.empty()) return "it left no state";
  for (const auto& [step, state] : right.states) {
    const auto seen = found.states.find(step);
    if (seen == found.states.end()) {
      if (step == right.states.rbegin()->first) return "there is no state of step " + std::to_string(step);
      continue;
    }
    for (const auto& [name, tensor] : state) {
      const auto mine = seen->second.find(name);
      const auto of = "after step " + std::to_string(step) + ": ";
      if (is_of_empty(job, name)) continue;
      if (job.amp != "none" && name.starts_with("optimizer.")) continue;  // sums of bf16 that cancel
      if (mine == seen->second.end()) return of + "there is no " + name;
      if (const auto text = difference(name, mine->second, tensor, t); !text.empty()) return of + text;
    }
  }
  if (!found.twice.empty() && job.strategy == "ddp" && job.event != "all")
    return found.twice + " is in the metrics twice";
  const bool goes_back =
      hurts(job) && job.event != "disk" && job.event != "stop" && job.event != "leave";  // steps may come again
  if (!goes_back && found.between_steps != right.between_steps)
    return "the program was called between steps " + std::to_string(found.between_steps) + " times, right are " +
           std::to_string(right.between_steps);
  return {};
}

namespace {

/// docs/numbers.md: "the same bits as an undisturbed run".
bool promises_bits(const Job& job) {
  if (trains_apart(job.strategy) || job.strategy == "parameter_server" || !job.switch_at.empty()) return false;
  // LibTorch's casts are all threads', and gone when another rank's forward ends.
  if (job.amp != "none" && job.tie != "none" && job.ranks > 1) return false;
  const bool same = (job.resume_ranks == 0 || job.resume_ranks == job.ranks) &&
                    (job.resume_batch == 0 || job.resume_batch == job.batch_size) &&
                    (job.resume_strategy.empty() || job.resume_strategy == job.strategy);
  const bool owes = job.comm_hook == "owing" || job.comm_hook == "powersgd";  // and a dead rank's is lost
  return job.event == "resume" ? same : hurts(job) && !shrinks(job) && !(owes && job.event == "kill");
}

std::string other_bits(const Outcome& found, const Outcome& undisturbed) {
  for (const auto& [number, step] : undisturbed.steps) {
    if (std::bit_cast<std::uint64_t>(found.steps.at(number).loss) != std::bit_cast<std::uint64_t>(step.loss))
      return "step " + std::to_string(number) + "'s loss";
  }
  for (const auto& [number, state] : undisturbed.states) {
    const auto seen = found.states.find(number);
    if (seen == found.states.end()) continue;
    for (const auto& [name, tensor] : state) {
      const auto mine = seen->second.find(name);
      if (mine == seen->second.end() || mine->second.nbytes() != tensor.nbytes() ||
          std::memcmp(mine->second.contiguous().data_ptr(), tensor.contiguous().data_ptr(), tensor.nbytes()) != 0)
        return name + " after step " + std::to_string(number);
    }
  }
  return {};
}

/// What has other bits than it has where nothing happens; empty: nothing, or that is not promised.
std::string disturbed(const Job& job, const Outcome& found, Ranks ranks) {
  if (!promises_bits(job)) return {};
  auto calm = job;
  calm.event = "none";
  const testing::ScratchDirectory folder;
  Order order;
  const auto undisturbed = subject(calm, folder.path(), order, ranks);
  if (!undisturbed.error.empty()) return "undisturbed it ended: " + undisturbed.error;
  const auto what = other_bits(found, undisturbed);
  return what.empty() ? what : what + " has other bits than in an undisturbed run";
}

}  // namespace

std::string verdict(const Job& job, Ranks ranks) {
  const testing::ScratchDirectory folder;
  Order order;
  const auto found = subject(job, folder.path(), order, ranks);
  if (!found.error.empty()) return "ended: " + found.error;
  for (const auto& [epoch, samples] : order) {
    std::set<std::int64_t> seen;
    for (const auto& [position, sample] : samples) {
      const bool stands_in = job.bad_sample >= 0 && sample == (job.bad_sample + 1) % job.samples;
      if (sample < 0 || sample >= job.samples || (!seen.insert(sample).second && !stands_in))
        return "epoch " + std::to_string(epoch) + " has sample " + std::to_string(sample) + " twice, or there is none";
    }
  }
  const auto right = reference(job, order);
  auto text = difference(job, found, right);
  // A rank may be through an outer step, and die, before the others are: then they take it anew.
  if (!text.empty() && kills(job) && trains_apart(job.strategy)) {
    auto early = job;
    early.dies_early = true;
    const auto also_right = reference(early, order);
    if (difference(job, found, also_right).empty()) return {};
  }
  if (std::getenv("TROUPE_DIFFERENTIAL_STEPS") != nullptr) print_steps(found, right);
  if (text.empty()) return disturbed(job, found, ranks);
  // Of some jobs rounding alone makes as much: f32 that divides by small roots, statistics of a few rows, f16 next to
  // its largest value.
  for (std::uint64_t noise = 1; noise <= 8; ++noise) {
    for (const auto by : {rounding(job), -rounding(job)}) {
      if (!difference(job, rounded_otherwise(job, order, by, noise), right).empty()) return "rough: " + text;
    }
  }
  return text;
}

}  // namespace troupe::differential
