#pragma once
// Which samples the reference's steps have. Includes nothing of Troupe.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/differential/outcome.hpp"
#include "tests/differential/samples.hpp"

namespace troupe::differential {

/// The samples of a step: by micro-batch, by rank.
using Batches = std::vector<std::vector<std::vector<std::int64_t>>>;

class ReferenceData {
 public:
  /// `job` may change between steps.
  ReferenceData(const Job& job, const Order& order) : job_(job), order_(order) {}

  /// How many have samples of their own.
  int ranks() const {
    const auto& strategy = job_.strategy;
    if (!strategy.starts_with("pipeline") && !strategy.starts_with("tensor_parallel")) return job_.ranks;
    return strategy.find("dp=2") != std::string::npos || strategy.find("fsdp=2") != std::string::npos ? 2 : 1;
  }
  /// Of a step. The one rank of a parameter server applies each before it takes its next part of the batch.
  int updates() const { return job_.strategy == "parameter_server" ? job_.staleness + 1 : 1; }
  std::int64_t per_epoch() const { return steps_per_epoch_of(job_); }
  std::int64_t steps_left() const { return (epochs_ - epoch_) * per_epoch() - in_epoch_; }
  bool is_within_epoch() const { return in_epoch_ > 0 || job_.feed == "uneven"; }

  Batches of_step(std::int64_t step) const { return job_.feed == "uneven" ? uneven(step) : cut(); }
  /// True: an epoch has ended.
  bool step_done() {
    if (job_.feed == "uneven" || ++in_epoch_ < per_epoch()) return false;
    in_epoch_ = 0;
    ++epoch_;
    return true;
  }
  /// It goes on at the same sample, as far as whole batches go.
  void change_batch(std::int64_t from, std::int64_t to) { in_epoch_ = in_epoch_ * from / to; }

 private:
  Batches uneven(std::int64_t step) const {
    Batches batches(1);
    for (int r = 0; r < job_.ranks; ++r) {
      const auto all = uneven_batches(job_, r);
      const auto b = static_cast<std::size_t>(step);
      batches[0].push_back(b < all.size() ? all[b] : std::vector<std::int64_t>());
    }
    return batches;
  }

  // An epoch's last batch is cut as a whole one is.
  Batches cut() const {
    const auto begin = in_epoch_ * job_.batch_size,
               of_step = std::min<std::int64_t>(job_.batch_size, job_.samples - begin);
    const std::int64_t parts = job_.accumulate * updates(), part = job_.batch_size / parts;
    Batches all(static_cast<std::size_t>(parts));
    for (std::size_t m = 0; m < all.size(); ++m) {
      const auto number = static_cast<std::int64_t>(m);
      const auto first = begin + of_step * number / parts, last = begin + of_step * (number + 1) / parts;
      const auto place = [&](int rank) { return first + (last - first) * (part * rank / ranks()) / part; };
      for (int r = 0; r < ranks(); ++r) {
        auto& mine = all[m].emplace_back();
        for (auto p = place(r); p < place(r + 1); ++p) mine.push_back(sample(p));
      }
    }
    return all;
  }

  std::int64_t sample(std::int64_t position) const {
    const auto epoch = order_.find(epoch_);
    if (epoch != order_.end() && epoch->second.contains(position)) position = epoch->second.at(position);
    return position == job_.bad_sample ? (position + 1) % job_.samples : position;
  }

  const Job& job_;
  const Order& order_;
  const std::int64_t epochs_ = epochs_of(job_);
  std::int64_t epoch_ = 0, in_epoch_ = 0;
};

}  // namespace troupe::differential
