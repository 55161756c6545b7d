#include "launch/loop/validation.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/strategy/evaluation.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/process/formatted.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/base/trace.hpp"
#include "tensor_io/checkpoint/best_checkpoint.hpp"
#include "tensor_io/data/sampler.hpp"
#include "tensor_io/layers/module_modes.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {
namespace {

constexpr const char* kSaved = "saved_";  // before these names: of the best one on disk

// on_bad_sample skip puts another sample in a bad one's place, which is held out and counted itself. The batch is then
// made anew, since only its data set can leave a sample out. Empty: all samples are bad.
Batch without_substitutes(const Dataset& held_out, std::vector<std::int64_t> asked, const SampleContext& context) {
  while (!asked.empty()) {
    auto batch = held_out.get_batch(asked, context);
    if (!batch.index.defined()) return batch;
    std::vector<std::int64_t> own;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      if (batch.index[static_cast<std::int64_t>(i)].item<std::int64_t>() == asked[i]) own.push_back(asked[i]);
    }
    if (own.size() == asked.size()) return batch;
    asked = std::move(own);
  }
  return {};
}

BestValidation read_best(const std::map<std::string, std::string>& texts, const std::string& prefix) {
  BestValidation best;
  best.accuracy = real_in(texts, prefix + kBest).value_or(best.accuracy);
  best.loss = real_in(texts, prefix + kBestLoss).value_or(best.loss);
  best.step = whole_in(texts, prefix + kBestStep).value_or(best.step);
  return best;
}

void write_best(const BestValidation& best, std::map<std::string, std::string>& texts, const std::string& prefix) {
  texts[prefix + kBest] = formatted("%.17g", best.accuracy);
  texts[prefix + kBestStep] = std::to_string(best.step);
  texts.erase(prefix + kBestLoss);
  if (std::isfinite(best.loss)) texts[prefix + kBestLoss] = formatted("%.17g", best.loss);
}

}  // namespace

BestValidation BestValidation::of(Compute& compute) { return read(compute.notes()); }

BestValidation BestValidation::saved(Compute& compute) { return read_best(compute.notes(), kSaved); }

BestValidation BestValidation::read(const std::map<std::string, std::string>& texts) { return read_best(texts, ""); }

void BestValidation::write(std::map<std::string, std::string>& texts) const { write_best(*this, texts, ""); }

void BestValidation::keep(Compute& compute) const { write(compute.notes()); }

void BestValidation::keep_saved(Compute& compute) const { write_best(*this, compute.notes(), kSaved); }

bool BestValidation::is_beaten_by(const ValidationReport& report) const {
  return report.accuracy > accuracy || (report.accuracy == accuracy && report.loss < loss);
}

bool Validation::is_stopped() const {
  auto& compute = system_of(rank_).compute();
  const int mine = process_stop_signal != 0 ? process_stop_signal : compute.services().status->stop_signal;
  auto signal = at::full({1}, static_cast<double>(mine), at::kDouble);
  rank_.all_reduce(signal, ReduceOp::max, "validation's stop");
  if (signal.item<double>() == 0) return false;
  compute.notes()[kStopSignal] = std::to_string(signal.item<std::int64_t>());
  return true;
}

std::optional<ValidationReport> Validation::run() const {
  const TraceSpan span("validation", TraceEvent::Kind::phase);
  const auto started = std::chrono::steady_clock::now();
  torch::NoGradGuard no_grad;
  const ModuleModes modes(model_);
  model_.eval();
  auto& compute = system_of(rank_).compute();
  auto& evaluation = compute.strategy().evaluation();
  evaluation.begin_evaluation();
  auto sums = at::zeros({5}, at::kDouble);  // loss, what it is over, right, samples, batches in which it logged
  auto& log = compute.metric_log();
  LoggedValues logged;
  const auto shard = compute.data_shard();
  const auto [first, last] = validation_part(held_out_->size(), shard.index, shard.count);
  const auto share = std::max<std::int64_t>(1, rank_.config().batch_size / shard.count);
  auto common = last - first;  // the samples that every rank has
  for (int i = 0; i < shard.count; ++i) {
    const auto [from, to] = validation_part(held_out_->size(), i, shard.count);
    common = std::min(common, to - from);
  }
  for (auto begin = first; begin < last; begin += share) {
    if (begin - first < common && is_stopped()) {
      evaluation.end_evaluation();
      return std::nullopt;
    }
    std::vector<std::int64_t> indices;
    for (auto i = begin; i < std::min(last, begin + share); ++i) indices.push_back(i);
    auto batch = without_substitutes(*held_out_, std::move(indices), SampleContext{rank_.config().seed, 0});
    if (batch.numel() == 0) continue;
    batch.counted = batch.numel();
    auto fields = batch.fields();
    for (auto& [name, tensor] : fields) tensor = tensor.to(rank_.device());
    batch.set_fields(fields);
    std::optional<Loss> loss;
    log.begin_micro_batch();
    const bool mine = evaluation.evaluate([&] { loss.emplace(loss_(batch)); });
    if (!mine) {  // another rank has the result
      log.forget_micro_batch();
      continue;
    }
    const auto n = static_cast<double>(batch.numel());
    const auto value = loss->value.item<double>();
    const bool is_sum = loss->elements.has_value();
    const auto over = is_sum ? static_cast<double>(*loss->elements) : n;
    const auto of_batch = log.take_micro_batch(over);
    logged.add(of_batch);
    sums += torch::tensor({is_sum ? value : value * n, over, loss->correct.value(), n, of_batch.empty() ? 0.0 : 1.0},
                          torch::kFloat64);
  }
  evaluation.end_evaluation();
  fault_point("validate", rank_.steps_done());
  rank_.all_reduce(sums, ReduceOp::sum, "validation");
  ValidationReport report;
  report.step = rank_.steps_done();
  report.samples = sums[3].item<double>();
  report.loss = sums[0].item<double>() / std::max(1.0, sums[1].item<double>());
  report.accuracy = sums[2].item<double>() / std::max(1.0, report.samples);
  if (sums[4].item<double>() > 0) {
    for (const auto& of_rank : rank_.communicator().all_gather_bytes(logged.encode(), "validation's log"))
      report.logged.add(LoggedValues::decode(of_rank));
  }
  report.seconds = seconds_since(started);
  return report;
}

}  // namespace troupe
