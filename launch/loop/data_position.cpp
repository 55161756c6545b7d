#include "launch/loop/data_position.hpp"

#include "launch/loop/batch_source.hpp"
#include "launch/loop/uneven_batches.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

std::string data_change(const DataFacts& before, const DataFacts& now) {
  if (before.samples == 0) return {};
  if (before.samples != now.samples)
    return "the data had " + std::to_string(before.samples) + " samples, and now has " + std::to_string(now.samples);
  const bool known = before.files != 0 && now.files != 0;
  return known && before.files != now.files ? "the data is in other files: their names or lengths differ" : "";
}

DataCursor DataPosition::cursor() const {
  if (source_ != nullptr) return source_->cursor();
  return uneven_ != nullptr ? uneven_->cursor() : start_;
}

bool DataPosition::epoch_is_over() const { return uneven_ == nullptr && cursor().step == 0 && cursor().epoch > 0; }

void DataPosition::refuse_second() const {
  const bool loader = source_ != nullptr && !source_->is_over();
  if (!loader && (uneven_ == nullptr || uneven_->is_over())) return;
  throw Error(ErrorCode::usage, "loop",
              std::string("another loop over rank.") + (loader ? "loader" : "uneven") + " is under way",
              "read its batches to the end or destroy it first; give held-out data to rank.validate_on, and several "
              "sources of samples one data set");
}

std::optional<DataCursor> DataPosition::begin_source(bool newcomer) noexcept {
  const bool first = !std::exchange(had_source_, true);
  if (first && newcomer && start_.epoch == 0 && start_.step == 0) return std::nullopt;
  return start_;
}

std::int64_t DataPosition::begin_uneven(const UnevenLoop* loop) noexcept {
  uneven_ = loop;
  if (uneven_loops_ == 0) uneven_start_ = {start_.epoch, start_round_};
  return uneven_loops_++;
}

bool DataPosition::end_uneven(const UnevenLoop* loop) noexcept {
  if (uneven_ != loop) return false;
  uneven_ = nullptr;
  return true;
}

}  // namespace troupe
