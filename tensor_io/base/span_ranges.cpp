#include "tensor_io/base/span_ranges.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <vector>

namespace troupe {
namespace {

using RangeName = std::array<char, 64>;

RangeName range_name(std::string_view text) noexcept {
  RangeName name{};
  std::copy_n(text.begin(), std::min(text.size(), name.size() - 1), name.begin());
  return name;
}

struct OpenedRange {
  std::uint64_t number;
  RangeName name;
};

SpanRanges* ranges_now() noexcept { return internal::span_ranges.load(std::memory_order_acquire); }

/// Those of one thread, the outermost first.
class RangeStack {
 public:
  ~RangeStack() { pop_to(0); }
  void push(std::uint64_t number, std::string_view text) {
    const auto& range = open_.emplace_back(OpenedRange{number, range_name(text)});
    if (auto* ranges = ranges_now()) ranges->push(range.name.data());
  }
  // Those that began later go on: they are cut in two.
  void remove(std::uint64_t number) noexcept {
    const auto mine =
        std::find_if(open_.begin(), open_.end(), [&](const auto& range) { return range.number == number; });
    if (mine == open_.end()) return;  // another thread's
    const auto index = static_cast<std::size_t>(mine - open_.begin());
    pop_to(index);
    open_.erase(mine);
    auto* ranges = ranges_now();
    for (auto i = index; ranges != nullptr && i < open_.size(); ++i) ranges->push(open_[i].name.data());
  }

 private:
  void pop_to(std::size_t left) const noexcept {
    auto* ranges = ranges_now();
    for (auto i = open_.size(); ranges != nullptr && i > left; --i) ranges->pop();
  }
  std::vector<OpenedRange> open_;
};

RangeStack& stack_of_thread() {
  thread_local RangeStack stack;
  return stack;
}

std::atomic<std::uint64_t> last_number{0};

}  // namespace

void set_span_ranges(SpanRanges* ranges) noexcept { internal::span_ranges.store(ranges, std::memory_order_release); }

void name_range_thread(std::string_view name) noexcept {
  if (auto* ranges = ranges_now(); ranges != nullptr && !name.empty()) ranges->name_thread(range_name(name).data());
}

void OpenRange::open(std::string_view name) noexcept {
  try {
    const auto number = last_number.fetch_add(1, std::memory_order_relaxed) + 1;
    stack_of_thread().push(number, name);
    number_ = number;
  } catch (const std::exception&) {  // no memory: the range is not worth the run
  }
}

void OpenRange::close() noexcept {
  stack_of_thread().remove(number_);
  number_ = 0;
}

}  // namespace troupe
