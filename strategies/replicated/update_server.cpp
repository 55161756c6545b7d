#include "strategies/replicated/update_server.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <string>

namespace troupe {

UpdateServer::UpdateServer(Round round, const std::vector<at::Tensor>& like, std::int64_t parameters)
    : round_(round),
      staleness_(static_cast<std::size_t>(round.updates)),
      shares_(static_cast<std::size_t>(round.ranks)) {
  for (std::int64_t u = 0; u < round.updates; ++u) {
    Update update;
    for (const auto& flat : like) update.gradients.push_back(at::empty_like(flat));
    update.used = at::zeros({parameters}, at::kByte);
    updates_.push_back(std::move(update));
  }
}

void UpdateServer::begin_round() {
  std::lock_guard lock(mutex_);
  arrived_ = 0;
  handed_out_ = round_.ranks;
}

UpdateServer::Answer UpdateServer::add(int rank, std::int64_t version, const Update& gradient) {
  at::NoGradGuard no_grad;
  std::lock_guard lock(mutex_);
  throw_if_failed();
  const auto number = arrived_ / round_.shares, behind = number - version;
  if (number >= updates() || behind < 0) {
    throw Error(ErrorReport{.code = ErrorCode::internal,
                            .rank = rank,
                            .actor = "parameter server",
                            .operation = "gradient",
                            .cause = "it is of version " + std::to_string(version) + ", and " + std::to_string(number) +
                                     " updates of " + std::to_string(updates()) + " are complete"});
  }
  ++staleness_[static_cast<std::size_t>(behind)];
  ++shares_[static_cast<std::size_t>(rank)];
  auto& update = updates_[static_cast<std::size_t>(number)];
  const bool first = arrived_ % round_.shares == 0, last = (arrived_ + 1) % round_.shares == 0;
  for (std::size_t i = 0; i < update.gradients.size(); ++i) {
    auto& sum = update.gradients[i];
    first ? sum.copy_(gradient.gradients[i]) : sum.add_(gradient.gradients[i]);
    if (last) sum.div_(round_.shares);
  }
  first ? update.used.copy_(gradient.used) : update.used.bitwise_or_(gradient.used);
  ++arrived_;
  if (arrived_ == all_shares()) all_complete_.notify_all();
  return {handed_out_ < all_shares() ? handed_out_++ : -1, arrived_ / round_.shares};
}

void UpdateServer::wait_for_all(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const bool over = all_complete_.wait_for(lock, timeout, [&] { return failed_ || arrived_ == all_shares(); });
  throw_if_failed();
  if (over) return;
  throw Error(ErrorReport{ErrorCode::timeout, -1, "parameter server", -1, "end of the round",
                          std::to_string(all_shares() - arrived_) + " gradients of the round did not arrive within " +
                              std::to_string(timeout.count()) + " ms",
                          "raise collective_timeout if a rank is only slow"});
}

void UpdateServer::fail(const ErrorReport& reason) {
  std::lock_guard lock(mutex_);
  if (!failed_) failed_ = reason;
  all_complete_.notify_all();
}

void UpdateServer::throw_if_failed() const {
  if (failed_) throw Error(*failed_);
}

std::vector<std::int64_t> UpdateServer::staleness() const {
  std::lock_guard lock(mutex_);
  return staleness_;
}

std::vector<std::int64_t> UpdateServer::shares() const {
  std::lock_guard lock(mutex_);
  return shares_;
}

}  // namespace troupe
