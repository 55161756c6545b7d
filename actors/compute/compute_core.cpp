#include "actors/compute/compute_core.hpp"

#include <c10/util/ScopeExit.h>

#include <set>

#include "actors/step/loss_scaling.hpp"
#include "actors/strategy/demand_shares.hpp"
#include "actors/strategy/snapshots.hpp"
#include "tensor_io/base/trace.hpp"
#include "tensor_io/layers/module_code.hpp"
#include "tensor_io/layout/named_parameters.hpp"

namespace troupe {

/// Where a parameter lies, and its sizes: a strategy that cuts it changes one of them. The memory is not kept.
struct ComputeCore::Place {
  at::Tensor parameter;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::vector<std::int64_t> sizes;
};

ComputeCore::~ComputeCore() = default;

ComputeCore::ComputeCore(caf::actor_system& system, ComputeOptions of_rank)
    : options(std::move(of_rank)), protocol(options.process), mailbox(system, protocol, options.timeout) {
  loss_scaler = LossScaler(options.training, scales_loss(options.training));
}

DataShard ComputeCore::data_shard() const {
  const auto* placement = capability<Placement>();
  return placement == nullptr ? DataShard{rank(), world_size()} : placement->data_shard();
}

std::int64_t ComputeCore::shares_per_rank() const {
  const auto* shares = capability<DemandShares>();
  return shares == nullptr ? 0 : shares->shares_per_rank();
}

ErrorReport ComputeCore::complete(ErrorReport report) const {
  if (report.rank < 0) report.rank = rank();
  if (report.actor.empty()) report.actor = "compute";
  if (report.step < 0) report.step = step();
  return report;
}

void ComputeCore::refuse(const char* place, const std::string& cause, const std::string& remedy) const {
  protocol.fail(ErrorCode::usage, place, cause, remedy);
}

void ComputeCore::take_model(std::shared_ptr<torch::nn::Module> taken) {
  model = std::move(taken);
  for (const auto& module : model->modules()) {
    if (const auto* code = dynamic_cast<const ModuleCode*>(module.get()))
      code_hash = code_hash * 1099511628211ull + code->file_hash();
  }
  for (auto& [name, parameter] : unique_parameters(*model)) {
    places_.push_back({parameter, parameter.storage().getWeakStorageImpl(), parameter.sizes().vec()});
    if (!parameter.requires_grad()) frozen_.emplace_back(name, parameter);
  }
}

void ComputeCore::make_strategy() {
  expect_values();
  first_rank_ = rank();
  strategy = troupe::make_strategy(strategy_context(protocol.must_heal()));
  protocol.keeps_snapshots(capability<Snapshots>() != nullptr);
}

void ComputeCore::became_distributed() {
  protocol.became_distributed();
  places_.clear();
}

void ComputeCore::expect_values() const {
  if (protocol.must_heal()) return;  // those who have them give them
  // Rank 0's values are all ranks', and it may have read them from a file.
  if (rank() == 0 && first_rank_ > 0)
    protocol.fail(ErrorCode::state_lost, "distribute", "rank 0 was lost before the others had its model",
                  "start again with --resume auto");
  for (const auto& place : places_) {
    if (place.parameter.storage().unsafeGetStorageImpl() == place.storage._unsafe_get_target() &&
        place.parameter.sizes() == place.sizes)
      continue;
    protocol.fail(ErrorCode::state_lost, "distribute",
                  "a rank was lost while the model was being split among the ranks, and no rank has all of it any more",
                  "start again with --resume auto");
  }
}

void ComputeCore::refuse_unfrozen() const {
  for (const auto& [name, parameter] : frozen_) {
    if (parameter.requires_grad())
      refuse("backward", "parameter " + name + " is trained now, and was frozen when the model was distributed",
             "freeze it after rank.distribute, or resume with a model in which it is not frozen");
  }
}

StrategyContext ComputeCore::strategy_context(bool newcomer) {
  StrategyContext context;
  context.rank = rank();
  context.world_size = world_size();
  context.newcomer = newcomer;
  context.options = options.strategy;
  for (const auto& member : membership().members) context.hosts.push_back(member.host);
  context.register_communicator = [this](const std::string& name, const std::shared_ptr<Communicator>& communicator) {
    caf::anon_send(services.supervisor, RegisterCommunicator{name, membership().generation, communicator});
  };
  context.gradient_communicator = services.gradient_communicator;
  context.program_communicator = services.program_communicator;
  context.reducer = services.reducer;
  context.progress = services.progress;
  context.system = &mailbox.actor().system();
  auto frozen = std::make_shared<std::set<const void*>>();
  for (const auto& [name, parameter] : frozen_) frozen->insert(parameter.unsafeGetTensorImpl());
  context.frozen = std::move(frozen);
  context.timeout = options.timeout;
  context.announce = [this](std::string news) { notices_.push_back(std::move(news)); };
  context.wait_reduced = [this](std::int64_t of_step) {
    auto& awaits = services.status->awaits_reducer;
    awaits = true;
    const auto over = c10::make_scope_exit([&] { awaits = false; });
    for (;;) {
      auto reduced = mailbox.receive<BucketsReduced>("reducer", "the step's buckets");
      trace_message("BucketsReduced", "reducer", reduced.finished_ns);
      if (reduced.step == of_step) return reduced;
    }
  };
  return context;
}

}  // namespace troupe
