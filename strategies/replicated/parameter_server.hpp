#pragma once
#include <caf/all.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/strategy/demand_shares.hpp"
#include "actors/strategy/own_actor.hpp"
#include "actors/strategy/own_figures.hpp"
#include "strategies/replicated/replicated_strategy.hpp"
#include "strategies/replicated/update_server.hpp"

namespace troupe {

/// The request to an actor of the server: serve one rank until the round's end. It stays in the process.
struct ServeRound {
  std::shared_ptr<UpdateServer> server;
  std::shared_ptr<Communicator> communicator;  // two ranks: the server's is 0
  int rank = 0;                                // the other one, in the job
  UpdateServer::Update incoming;               // receives its gradient
  std::chrono::milliseconds timeout{60'000};
};
struct RoundServed {};
using ParameterLinkActor = caf::typed_actor<caf::replies_to<ServeRound>::with<RoundServed>>;

/// A parameter server with bounded staleness: in a synchronous step all wait for the slowest rank. Here a step is a
/// round. Its batch is cut into (staleness + 1) x server_shares x world size shares, which ranks take on demand, so
/// that a slow one takes fewer. A share's gradient goes to the server on rank 0, which answers with the updates that
/// the rank has not seen, and with its next share. Within a round ranks are at different updates. At its end all have
/// applied all of them, and vote as after any step (UpdateServer has the bound).
///
/// Without staleness a round is one update, and no rank needs it before the end. So the server only hands out shares,
/// each rank adds up its own gradients, and one all-reduce makes the mean of all.
///
/// The server sends mean gradients, and each rank applies them with its own optimizer, in the server's order. So
/// between rounds ranks are equal to the bit, in parameters and optimizer. No part of the state is on one rank alone,
/// not even on the server's.
///
/// A round is a transaction as a step is: parameters and optimizer state are copied at its start, if it has more than
/// one update. The last update is applied after the vote, by compute.
class ParameterServer final : public ReplicatedStrategy, public DemandShares, public OwnFigures {
 public:
  explicit ParameterServer(StrategyContext context);
  ~ParameterServer() override { drop_links(); }

  StrategyCapabilities capabilities() override;
  void shard_optimizer(Optimizer& optimizer) override { optimizer_ = &optimizer; }
  void set_rollback_point() override;
  void begin_forward(std::int64_t step) override;
  void begin_step(std::int64_t step) override;
  void end_step(const std::vector<bool>& used, bool rebuild, bool commit) override;
  void roll_back() override;
  std::int64_t shares_per_rank() const override { return updates() * context().options.server_shares; }
  Share next_share() const override;
  bool end_share(const std::function<void()>& update) override;
  std::string describe() const override;
  Figures own_figures(std::int64_t done) const override;

  /// On rank 0; null elsewhere.
  const UpdateServer* server() const noexcept { return server_.get(); }

 protected:
  void combine_gradients(GradientSummary& summary) override;
  void joined() override;

 private:
  struct Link {
    std::shared_ptr<Communicator> communicator;
    std::unique_ptr<OwnActor<ParameterLinkActor>> actor;
    UpdateServer::Update incoming;
  };
  std::int64_t updates() const { return context().options.staleness + 1; }                        // of a round
  std::int64_t shares() const { return context().world_size * context().options.server_shares; }  // of an update
  bool adds_up() const { return updates() == 1; }
  /// The server adds up in the host's memory: on a device this is a copy of the gradients on their way there.
  std::vector<at::Tensor> for_server() const;
  void take_update(const std::vector<at::Tensor>& from_server) const;
  void open_round(std::int64_t step);
  UpdateServer::Update gradient();
  bool exchange_here(const std::function<void()>& apply);
  bool exchange_with_server(const std::function<void()>& apply);
  void taken(const at::Tensor& used, const std::function<void()>& apply);
  void keep_start();
  void close_round(bool go_back);
  void drop_links();

  std::shared_ptr<UpdateServer> server_;        // rank 0
  std::vector<Link> links_;                     // rank 0: to each other rank
  std::shared_ptr<Communicator> communicator_;  // of the others, to the server
  Optimizer* optimizer_ = nullptr;              // the program's
  bool round_open_ = false;
  std::int64_t share_ = 0;         // of the round, that this rank has; the first of them is its rank
  std::int64_t taken_ = 0;         // updates of the round, all but the last one applied
  std::int32_t not_finite_ = -1;   // the first parameter in the round whose gradient was not
  std::vector<bool> used_;         // in the last update
  bool start_kept_ = false;        // a part of the round was applied
  std::vector<at::Tensor> start_;  // parameters as the round found them, in their order ...
  NamedTensors start_optimizer_;   // ... and the optimizer's state
};

/// Makes `parameter_server` known to make_strategy.
void register_parameter_server();

}  // namespace troupe
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ServeRound)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::RoundServed)
