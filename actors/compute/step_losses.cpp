#include "actors/compute/step_losses.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace troupe {

void StepLosses::begin() {
  device_losses_.clear();
  // The same however many ranks there are now: what a communication hook owes outlives some of them.
  const double at_least = std::max<double>(expected_elements_, core_.options.world_size);
  vote_.gradient_divisor = std::exp2(std::round(std::log2(at_least)));
}

void StepLosses::check_is_scalar(const at::Tensor& loss) const {
  if (loss.numel() == 1) return;
  core_.refuse("backward", "the loss has " + std::to_string(loss.numel()) + " elements", "reduce it to its mean");
}

void StepLosses::check(const Loss& loss) const {
  check_is_scalar(loss.value);
  if (loss.elements && sums_refused_ != nullptr) {
    core_.refuse("backward",
                 std::string("the loss is a sum, and ") + sums_refused_ + " before all ranks' elements are counted",
                 "give the mean of the loss, or leave that setting out");
  }
  const bool first = vote_.elements == Vote::kNoLoss, sums = vote_.elements >= 0;
  if (first || loss.elements.has_value() == sums) return;
  core_.refuse("backward",
               std::string("this micro-batch's loss is a ") + (sums ? "mean" : "sum") + ", the ones before " +
                   (sums ? "are sums" : "are means"),
               "give Loss::sum for every micro-batch, or for none");
}

bool StepLosses::counts() const {
  const auto* placement = core_.capability<Placement>();
  return placement == nullptr || placement->counts_samples();
}

void StepLosses::count(const MicroBatchLoss& micro_batch) {
  const auto& [value, correct, elements] = micro_batch.loss;
  const bool counts = this->counts(), is_sum = elements.has_value();
  if (vote_.elements == Vote::kNoLoss) vote_.elements = is_sum ? 0 : Vote::kMeans;
  if (micro_batch.weight == 0) return;
  const double times = is_sum ? 1 : micro_batch.samples;
  if (value.is_cpu()) {
    count_value(value.item<double>(), times, counts);
  } else {
    // To read them now would wait for the whole forward.
    device_losses_.push_back({value.detach(), counts ? correct.on_device() : at::Tensor(), times, counts});
  }
  if (!counts) return;
  if (is_sum) vote_.elements += *elements;
  vote_.samples += micro_batch.samples;
  if (value.is_cpu() || !correct.on_device().defined()) vote_.correct += correct.value();
}

void StepLosses::count_value(double value, double samples, bool counts) {
  if (!std::isfinite(value)) vote_.not_finite_loss = 1;
  if (counts) vote_.loss_sum += value * samples;
}

double StepLosses::weight_or_poison(double weight) {
  return core_.services.status->poisoned.exchange(false) ? std::nan("") : weight;
}

double StepLosses::backward_factor(const MicroBatchLoss& micro_batch) {
  const auto weight = weight_or_poison(micro_batch.weight), scale = core_.loss_scaler.scale();
  if (std::isnan(weight)) return weight;
  if (micro_batch.loss.elements) return weight == 0 ? 0 : scale * core_.data_shard().count / vote_.gradient_divisor;
  return weight * scale / static_cast<double>(core_.options.training.grad_accum_steps);
}

}  // namespace troupe
