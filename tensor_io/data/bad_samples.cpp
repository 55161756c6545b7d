#include "tensor_io/data/bad_samples.hpp"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "tensor_io/base/error.hpp"

namespace troupe {

std::int64_t SkipBadSamples::good_from(std::int64_t index, const SampleContext& context, Example& example) const {
  for (std::int64_t tried = 0;; ++tried) {
    const auto candidate = (index + tried) % size();
    try {
      example = inner_->get(candidate, context);
      return candidate;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::bad_data) throw;
      if (tried + 1 >= std::min(kMostInARow, size())) {
        throw Error(ErrorCode::bad_data, inner_->name(),
                    "none of " + std::to_string(tried + 1) + " samples in a row can be read; the last: " + error.what(),
                    "fix the data: these are more than a few bad samples");
      }
      std::lock_guard lock(mutex_);
      if (bad_.insert(candidate).second) {
        notices_.push_back("bad sample " + std::to_string(candidate) + " skipped (" + std::to_string(bad_.size()) +
                           " so far on this rank): " + error.what());
      }
    }
  }
}

Example SkipBadSamples::get(std::int64_t index, const SampleContext& context) const {
  Example example;
  good_from(index, context, example);
  return example;
}

Batch SkipBadSamples::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  try {
    return inner_->get_batch(indices, context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_data) throw;
  }
  std::vector<std::int64_t> read;
  std::vector<Example> examples(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    read.push_back(good_from(indices[i], context, examples[i]));
    examples[i].index = read.back();
  }
  auto batch = collate(examples);
  batch.index = at::tensor(at::ArrayRef<std::int64_t>(read.data(), read.size()), at::kLong);
  return batch;
}

std::vector<std::string> SkipBadSamples::take_notices() const {
  auto all = inner_->take_notices();
  std::lock_guard lock(mutex_);
  for (auto& notice : std::exchange(notices_, {})) all.push_back(std::move(notice));
  return all;
}

std::int64_t SkipBadSamples::skipped() const {
  std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(bad_.size());
}

TrainAndHeldOut skip_bad_samples(TrainAndHeldOut data, const DataOptions& options) {
  if (options.on_bad_sample != "skip") return data;
  const auto skipping = [](std::shared_ptr<const Dataset> inner) -> std::shared_ptr<const Dataset> {
    return inner ? std::make_shared<SkipBadSamples>(std::move(inner)) : nullptr;
  };
  return {skipping(std::move(data.first)), skipping(std::move(data.second))};
}

}  // namespace troupe
