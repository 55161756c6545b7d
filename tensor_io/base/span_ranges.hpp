#pragma once
#include <atomic>
#include <cstdint>
#include <string_view>

namespace troupe {

/// Draws the spans of all threads as ranges in a profiler of GPUs, beside or without a trace: NVTX. Each thread has its
/// stack. Any thread.
class SpanRanges {
 public:
  virtual ~SpanRanges() = default;
  /// Begins a range on the calling thread, inside of those that are open there. The name is copied.
  virtual void push(const char* name) noexcept = 0;
  /// Ends the calling thread's innermost range.
  virtual void pop() noexcept = 0;
  /// The calling thread's name from now on. It is copied.
  virtual void name_thread(const char* name) noexcept = 0;
};

/// From now on spans of all threads are ranges there, too; nullptr: no more. Not owned. While no span is open.
void set_span_ranges(SpanRanges* ranges) noexcept;
/// Names the calling thread, if spans are ranges.
void name_range_thread(std::string_view name) noexcept;

namespace internal {
constinit inline std::atomic<SpanRanges*> span_ranges{nullptr};
}  // namespace internal

/// Whether spans are ranges: one relaxed load.
inline bool spans_are_ranges() noexcept { return internal::span_ranges.load(std::memory_order_relaxed) != nullptr; }

/// A range of the calling thread from here, or from `begin`, to `end` or the end of the scope. Nothing if spans are no
/// ranges.
///
/// If ranges of a thread overlap, the inner one is cut in two, so that pushes and pops are always balanced. A range is
/// to end on its own thread; else it ends with that thread.
class OpenRange {
 public:
  OpenRange() = default;
  explicit OpenRange(std::string_view name) noexcept { begin(name); }
  ~OpenRange() { end(); }
  OpenRange(const OpenRange&) = delete;
  OpenRange& operator=(const OpenRange&) = delete;

  /// Ends the range before. The name is cut at 63 bytes.
  void begin(std::string_view name) noexcept {
    end();
    if (spans_are_ranges()) open(name);
  }
  void end() noexcept {
    if (is_open()) close();
  }
  bool is_open() const noexcept { return number_ != 0; }

 private:
  void open(std::string_view name) noexcept;
  void close() noexcept;
  std::uint64_t number_ = 0;  // among the process's; 0: not open
};

}  // namespace troupe
