#include "strategies/replicated/parameter_server.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace troupe {
namespace {

constexpr const char* kLabel = "parameter server";

void serve(const ServeRound& round) {
  auto& communicator = *round.communicator;
  const auto version = at::empty({1}, at::kLong);
  const auto header = at::empty({3}, at::kLong);
  for (;;) {
    communicator.recv(version, 1, kLabel);
    communicator.recv(round.incoming.used, 1, kLabel);
    for (const auto& flat : round.incoming.gradients) communicator.recv(flat, 1, kLabel);
    const auto seen = version.item<std::int64_t>();
    auto answer = round.server->add(round.rank, seen, round.incoming);
    if (answer.share < 0) {
      round.server->wait_for_all(round.timeout);
      answer.complete = round.server->updates();
    }
    header[0] = answer.share;
    header[1] = answer.complete;
    communicator.send(header, 1, kLabel);
    for (auto u = seen; u < answer.complete; ++u) {
      const auto& update = round.server->update(u);
      communicator.send(update.used, 1, kLabel);
      for (const auto& flat : update.gradients) communicator.send(flat, 1, kLabel);
    }
    if (answer.share < 0) return;
  }
}

// A thread for each rank, so that the server takes what comes while its own rank computes.
ParameterLinkActor::behavior_type parameter_link(ParameterLinkActor::pointer) {
  return {[](const ServeRound& round) {
    try {
      serve(round);
    } catch (...) {  // the others who wait for the round's end are to hear of it, and the server's own rank
      round.server->fail(report_of_own_actor(std::current_exception()));
      throw;
    }
    return RoundServed{};
  }};
}

}  // namespace

ParameterServer::ParameterServer(StrategyContext context) : ReplicatedStrategy(std::move(context)) {
  const auto& options = this->context().options;
  if (options.sync_batchnorm) {
    throw Error(ErrorCode::usage, "sync_batchnorm", "the ranks of " + name() + " run forward at different times",
                "leave it off, or train with ddp");
  }
}

StrategyCapabilities ParameterServer::capabilities() {
  auto all = ReplicatedStrategy::capabilities();
  all.refuse<LateVoting>("waits for the vote, with which a round ends");
  return all;
}

void ParameterServer::joined() {
  drop_links();
  close_round(false);
  const int me = context().rank, ranks = context().world_size;
  const auto parameters = static_cast<std::int64_t>(parameter_names().size());
  const auto like = for_server();
  if (me == 0)
    server_ = std::make_shared<UpdateServer>(UpdateServer::Round{ranks, updates(), shares()}, like, parameters);
  for (int r = 1; r < ranks; ++r) {
    const auto communicator = context().split(*context().program_communicator, me == 0 || me == r ? 0 : -1, me,
                                              "parameter server, rank " + std::to_string(r));
    if (!communicator) continue;
    if (me == r) communicator_ = communicator;
    if (me != 0) continue;
    Link link;
    link.communicator = communicator;
    link.actor = std::make_unique<OwnActor<ParameterLinkActor>>(context(), "parameter server", parameter_link);
    for (const auto& flat : like) link.incoming.gradients.push_back(at::empty_like(flat));
    link.incoming.used = at::zeros({parameters}, at::kByte);
    links_.push_back(std::move(link));
  }
}

// Their actors wait for communicators, or for the round's end: an open round ends here.
void ParameterServer::drop_links() {
  const ErrorReport over{ErrorCode::aborted, context().rank, kLabel, step(), {}, "the generation is over", {}};
  if (server_) server_->fail(over);
  if (round_open_) {
    for (const auto& link : links_) link.communicator->abort(over);
  }
  links_.clear();
  communicator_.reset();
  server_.reset();
}

void ParameterServer::set_rollback_point() {
  if (!round_open_) ReplicatedStrategy::set_rollback_point();
}

void ParameterServer::begin_forward(std::int64_t step) { open_round(step); }

void ParameterServer::begin_step(std::int64_t step) {
  ReplicatedStrategy::begin_step(step);
  open_round(step);
}

// Before rank 0's forward, which may take long: the server serves meanwhile.
void ParameterServer::open_round(std::int64_t step) {
  if (std::exchange(round_open_, true)) return;
  share_ = context().rank;
  if (communicator_) communicator_->ledger().set_step(step);
  if (server_) server_->begin_round();
  for (const auto& link : links_) {
    link.communicator->ledger().set_step(step);
    const auto rank = static_cast<int>(&link - links_.data()) + 1;
    link.actor->send(ServeRound{server_, link.communicator, rank, link.incoming, context().timeout});
  }
}

Share ParameterServer::next_share() const {
  const auto share = round_open_ ? share_ : context().rank;
  return {share / context().world_size, static_cast<int>(share % context().world_size)};
}

std::vector<at::Tensor> ParameterServer::for_server() const {
  std::vector<at::Tensor> copies;
  if (adds_up()) return copies;
  for (const auto& flat : gradients()) copies.push_back(flat.cpu());
  return copies;
}

void ParameterServer::take_update(const std::vector<at::Tensor>& from_server) const {
  for (std::size_t i = 0; i < from_server.size(); ++i) {
    if (!from_server[i].is_same(gradients()[i])) gradients()[i].copy_(from_server[i]);
  }
}

UpdateServer::Update ParameterServer::gradient() {
  const auto used = buckets().used();
  auto flags = at::zeros({static_cast<std::int64_t>(used.size())}, at::kByte);
  for (std::size_t p = 0; p < used.size(); ++p) flags.data_ptr<std::uint8_t>()[p] = used[p] ? 1 : 0;
  return {for_server(), flags};
}

bool ParameterServer::end_share(const std::function<void()>& update) {
  torch::NoGradGuard no_grad;
  if (not_finite_ < 0) not_finite_ = buckets().not_finite_parameter();
  const bool more = server_ ? exchange_here(update) : exchange_with_server(update);
  if (!adds_up()) {
    if (more) buckets().begin_step();
    return more;
  }
  if (more) return true;
  for (const auto& flat : gradients()) {
    context().program_communicator->all_reduce(flat, ReduceOp::sum, "gradients");
    flat.div_(shares());
  }
  return false;
}

bool ParameterServer::exchange_here(const std::function<void()>& apply) {
  auto answer = server_->add(0, taken_, gradient());
  if (answer.share < 0) {
    server_->wait_for_all(context().timeout);
    answer.complete = server_->updates();
  }
  while (taken_ < answer.complete) {
    const auto& update = server_->update(taken_);
    take_update(update.gradients);
    taken(update.used, apply);
  }
  share_ = answer.share;
  if (share_ >= 0) return true;
  for (const auto& link : links_) (void)link.actor->receive<RoundServed>("end of the round");
  return false;
}

bool ParameterServer::exchange_with_server(const std::function<void()>& apply) {
  const auto mine = gradient();
  communicator_->send(at::full({1}, taken_, at::kLong), 0, kLabel);
  communicator_->send(mine.used, 0, kLabel);
  for (const auto& flat : mine.gradients) communicator_->send(flat, 0, kLabel);
  const auto header = at::empty({3}, at::kLong);
  communicator_->recv(header, 0, kLabel);
  share_ = header[0].item<std::int64_t>();
  for (const auto complete = header[1].item<std::int64_t>(); taken_ < complete;) {
    communicator_->recv(mine.used, 0, kLabel);
    for (const auto& flat : mine.gradients) communicator_->recv(flat, 0, kLabel);  // what was there is with the server
    take_update(mine.gradients);
    taken(mine.used, apply);
  }
  return share_ >= 0;
}

// The last update of the round stays in gradients(), for the step's own end.
void ParameterServer::taken(const at::Tensor& used, const std::function<void()>& apply) {
  const auto* flags = used.const_data_ptr<std::uint8_t>();
  used_.assign(flags, flags + used.numel());
  if (++taken_ == updates()) return;
  keep_start();
  buckets().set_gradients(used_);
  apply();
}

void ParameterServer::combine_gradients(GradientSummary& summary) {
  summary.used = used_;
  summary.not_finite_parameter = not_finite_;
}

void ParameterServer::keep_start() {
  if (std::exchange(start_kept_, true)) return;
  const auto keep = [](at::Tensor& copy, const at::Tensor& value) {
    copy.defined() && copy.sizes() == value.sizes() ? copy.copy_(value) : copy = value.detach().clone();
  };
  start_.resize(parameters().size());
  for (std::size_t p = 0; p < start_.size(); ++p) keep(start_[p], parameters()[p].second.detach());
  const auto state = optimizer_->state();
  start_optimizer_.resize(state.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    start_optimizer_[i].first = state[i].first;
    keep(start_optimizer_[i].second, state[i].second);
  }
}

void ParameterServer::close_round(bool go_back) {
  torch::NoGradGuard no_grad;
  if (go_back && start_kept_) {
    for (std::size_t p = 0; p < start_.size(); ++p) parameters()[p].second.detach().copy_(start_[p]);
    optimizer_->load_state(start_optimizer_);
  }
  start_kept_ = round_open_ = false;
  taken_ = 0;
  not_finite_ = -1;
}

void ParameterServer::end_step(const std::vector<bool>& used, bool rebuild, bool commit) {
  ReplicatedStrategy::end_step(used, rebuild, commit);
  close_round(!commit);
}

void ParameterServer::roll_back() {
  ReplicatedStrategy::roll_back();
  // Its communicators are broken, and its actors are to end before what they read is written.
  drop_links();
  close_round(true);
}

std::string ParameterServer::describe() const {
  const auto for_each = context().options.server_shares;
  return name() + " on rank 0: " + std::to_string(updates()) + (updates() == 1 ? " update" : " updates") +
         " a step, gradients at most " + std::to_string(context().options.staleness) + " updates old" +
         (for_each > 1 ? ", " + std::to_string(for_each) + " shares for each rank" : std::string());
}

// Of the present membership: another one has another server.
OwnFigures::Figures ParameterServer::own_figures(std::int64_t) const {
  if (!server_) return {};
  const auto shares = server_->shares(), behind = server_->staleness();
  const auto all = static_cast<double>(std::reduce(shares.begin(), shares.end()));
  if (all == 0) return {};
  const auto [fewest, most] = std::minmax_element(shares.begin(), shares.end());
  double updates_behind = 0;
  for (std::size_t updates = 0; updates < behind.size(); ++updates)
    updates_behind += static_cast<double>(updates) * static_cast<double>(behind[updates]);
  return {{"staleness", updates_behind / all},
          {"largest_share", static_cast<double>(*most) / all},
          {"smallest_share", static_cast<double>(*fewest) / all}};
}

void register_parameter_server() {
  register_strategy(
      "parameter_server",
      "ranks take parts of a step on demand and send gradients to a server, at most `staleness` updates old",
      [](StrategyContext context) { return std::make_unique<ParameterServer>(std::move(context)); });
}

}  // namespace troupe
