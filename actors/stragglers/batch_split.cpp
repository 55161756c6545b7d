#include "actors/stragglers/batch_split.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <utility>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/number_of.hpp"
#include "tensor_io/base/upper_median.hpp"

namespace troupe {
namespace {

std::string list_of(std::span<const std::int64_t> numbers) {
  std::string text;
  for (const auto number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

std::string list_of(std::span<const double> numbers) {
  std::string text;
  for (const auto number : numbers) {
    char one[32];
    std::snprintf(one, sizeof one, "%.1f", number);
    text += (text.empty() ? "" : ", ") + std::string(one);
  }
  return text;
}

}  // namespace

std::string Balance::parse(const std::string& text, Balance& balance) {
  balance = {};
  if (text == "equal") return {};
  if (text == "speed") {
    balance.by = By::speed;
    return {};
  }
  balance.by = By::weights;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto weight = number_of<double>(word);
    if (!weight || !(*weight > 0) || *weight > 1e6)
      return "'" + word + "' is not a rank's weight: a number above 0 and at most 1000000";
    balance.weights.push_back(*weight);
  }
  if (balance.weights.empty() || text.ends_with(",")) return "a weight is missing";
  return {};
}

std::vector<std::int64_t> share_out(std::span<const double> speeds, std::int64_t total) {
  const auto ranks = static_cast<std::int64_t>(speeds.size());
  if (total < ranks) {
    throw Error(
        ErrorCode::usage, "balance",
        "a micro-batch of " + std::to_string(total) + " samples is too small for " + std::to_string(ranks) + " ranks",
        "raise batch_size, or lower grad_accum_steps");
  }
  const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  std::vector<std::int64_t> shares;
  std::int64_t given = 0;
  for (const auto speed : speeds) {
    shares.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(total) * speed / sum)));
    given += shares.back();
  }
  const auto done_at = [&](std::size_t r, std::int64_t share) { return static_cast<double>(share) / speeds[r]; };
  for (; given < total; ++given) {
    std::size_t first = 0;
    for (std::size_t r = 1; r < shares.size(); ++r) {
      if (done_at(r, shares[r] + 1) < done_at(first, shares[first] + 1)) first = r;
    }
    ++shares[first];
  }
  for (; given > total; --given) {  // where the least share was more than a slow rank's
    std::size_t last = shares.size();
    for (std::size_t r = 0; r < shares.size(); ++r) {
      if (shares[r] > 1 && (last == shares.size() || done_at(r, shares[r]) > done_at(last, shares[last]))) last = r;
    }
    --shares[last];
  }
  return shares;
}

void Balance::check(int ranks) const {
  if (by != By::weights || weights.size() == static_cast<std::size_t>(ranks)) return;
  throw Error(
      ErrorCode::usage, "balance",
      "it has " + std::to_string(weights.size()) + " weights, and the job has " + std::to_string(ranks) + " ranks",
      "give one for each rank, or set it to speed or equal");
}

BatchSplit::BatchSplit(Balance balance, std::int64_t total, int ranks) : balance_(std::move(balance)), total_(total) {
  reset(ranks);
}

void BatchSplit::reset(int ranks) {
  recent_.assign(static_cast<std::size_t>(ranks), {});
  shares_.clear();
  if (balance_.by == Balance::By::equal) return;
  const bool weighs = balance_.weights.size() == static_cast<std::size_t>(ranks);
  shares_ = share_out(weighs ? balance_.weights : std::vector<double>(static_cast<std::size_t>(ranks), 1.0), total_);
}

bool BatchSplit::add(std::span<const double> own_ms) {
  if (balance_.by != Balance::By::speed || own_ms.size() < 2 || own_ms.size() != shares_.size()) return false;
  for (std::size_t r = 0; r < own_ms.size(); ++r) recent_[r].push_back(own_ms[r]);
  if (recent_[0].size() < kWindow) return false;
  std::vector<double> took, speeds;
  for (std::size_t r = 0; r < own_ms.size(); ++r) {
    took.push_back(std::max(1e-3, upper_median(recent_[r])));
    speeds.push_back(static_cast<double>(shares_[r]) / took[r]);
    recent_[r].clear();
  }
  auto next = share_out(speeds, total_);
  double now = 0, then = 0;
  for (std::size_t r = 0; r < next.size(); ++r) {
    now = std::max(now, took[r]);
    then = std::max(then, static_cast<double>(next[r]) / speeds[r]);
  }
  if (!(then < (1 - kGain) * now)) return false;
  change_ = "shares of the batch are now " + list_of(next) + " samples (ranks took " + list_of(took) + " ms for " +
            list_of(shares_) + ")";
  shares_ = std::move(next);
  return true;
}

}  // namespace troupe
