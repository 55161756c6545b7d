#include "actors/compute/metric_log.hpp"

#include <iterator>
#include <utility>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

double number_of(const MetricLog::Number& value) {
  const auto* tensor = std::get_if<at::Tensor>(&value);
  return tensor == nullptr ? std::get<double>(value) : tensor->item<double>();
}

}  // namespace

void MetricLog::add(const std::string& name, Number value, Reduce reduce, std::optional<double> weight) {
  check_metric_name(name);
  if (auto* tensor = std::get_if<at::Tensor>(&value)) {
    if (!tensor->defined() || tensor->numel() != 1)
      throw Error(ErrorCode::usage, "log",
                  "the value of '" + name + "' has " +
                      (tensor->defined() ? std::to_string(tensor->numel()) : std::string("no")) + " elements",
                  "log a number, or a tensor of one element");
    // A copy: the program may go on to write into it.
    if (tensor->is_cpu()) {
      value = tensor->item<double>();
    } else {
      *tensor = tensor->detach().clone();
    }
  }
  (in_micro_batch_ ? pending_ : between_).push_back({name, std::move(value), reduce, weight});
}

void MetricLog::begin_micro_batch() {
  if (!hands_out_) between_ = std::exchange(pending_, {});  // before the loop began
  hands_out_ = in_micro_batch_ = true;
  pending_.clear();
}

void MetricLog::forget_micro_batch() {
  pending_.clear();
  in_micro_batch_ = !hands_out_;
}

void MetricLog::weigh(std::vector<Entry>& entries, double weight) {
  for (auto& entry : entries) entry.weight = weight == 0 ? 0 : entry.weight.value_or(weight);
}

void MetricLog::end_micro_batch(double weight) {
  weigh(pending_, weight);
  of_step_.insert(of_step_.end(), std::make_move_iterator(pending_.begin()), std::make_move_iterator(pending_.end()));
  forget_micro_batch();
}

void MetricLog::give_up_step() {
  of_step_.clear();
  forget_micro_batch();
}

void MetricLog::end_step() {
  give_up_step();
  between_.clear();
}

void MetricLog::count(const std::vector<Entry>& entries, LoggedValues& into) {
  for (const auto& entry : entries) {
    if (entry.weight != 0.0) into.add(entry.name, number_of(entry.value), entry.reduce, entry.weight.value_or(1));
  }
}

LoggedValues MetricLog::of_step() const {
  LoggedValues logged;
  count(of_step_, logged);
  count(between_, logged);
  return logged;
}

LoggedValues MetricLog::take_micro_batch(double weight) {
  weigh(pending_, weight);
  LoggedValues logged;
  count(pending_, logged);
  forget_micro_batch();
  return logged;
}

}  // namespace troupe
