#pragma once
// Rows of docs/gpu.md: lines of a Markdown table. Medians of blocks taken in turns.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace troupe::test {

inline constexpr int kBlocks = 7;

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Seconds of one of `times` calls, the device's end included.
inline double seconds(int times, const std::function<void()>& work) {
  torch::cuda::synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) work();
  torch::cuda::synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / times;
}

struct Pair {
  double ours, other, ratio;
};

inline Pair in_turns(int times, const std::function<void()>& ours, const std::function<void()>& other) {
  for (int i = 0; i < 3; ++i) ours(), other();
  std::vector<double> a, b, ratio;
  for (int block = 0; block < kBlocks; ++block) {
    a.push_back(seconds(times, ours));
    b.push_back(seconds(times, other));
    ratio.push_back(a.back() / b.back());
  }
  return {median(a), median(b), median(ratio)};
}

inline void row(const std::string& name, const std::string& ours, const std::string& other, double ratio,
                const char* target) {
  std::printf("| %s | %s | %s | %.3f | %s |\n", name.c_str(), ours.c_str(), other.c_str(), ratio, target);
  std::fflush(stdout);
}

inline std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

// Each prints its rows. Throws what went wrong.
void optimizer_rows();
void overlap_rows();

}  // namespace troupe::test
