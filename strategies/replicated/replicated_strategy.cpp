#include "strategies/replicated/replicated_strategy.hpp"

#include <map>
#include <set>

#include "actors/rank/sharded_dtypes.hpp"
#include "strategies/replicated/bucket_caps.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tensor_io/kernels/gradient_clip.hpp"
#include "tensor_io/layers/deferred_init.hpp"
#include "tensor_io/layout/named_parameters.hpp"

namespace troupe {

class ReplicatedStrategy::Written final : public GraphCapture::HostPart {
 public:
  GradientBuckets::BackwardTrail trail;
  std::vector<std::int32_t> full;                    // buckets, in the order in which they were
  std::vector<std::shared_ptr<DeviceEvent>> events;  // that the graph marks
};

ReplicatedStrategy::ReplicatedStrategy(StrategyContext context) : context_(std::move(context)) {}

void ReplicatedStrategy::attach(std::shared_ptr<torch::nn::Module> model) {
  if (const auto& named = context_.options.comm_hook; named != "none" && hook() == nullptr)
    throw Error(ErrorCode::usage, "comm_hook", named + " is for buckets of gradients, and " + name() + " has none",
                "none");
  refuse_sharded_dtypes(context_.options, name());
  model_ = std::move(model);
  materialize(*model_, context_.program_communicator->device());
  for (const auto& [name, parameter] : unique_parameters(*model_)) {
    names_.push_back(name);
    if (context_.trains(parameter)) parameters_.emplace_back(name, parameter);
  }
  make_buckets();
  buffers_ = std::make_unique<FlatBuffers>(*model_);
  if (!context_.newcomer && !context_.switched_at) {
    broadcast_tensors(unique_parameters(*model_), *context_.program_communicator, "parameters");
    buffers_->broadcast(*context_.program_communicator);
  }
  joined();
}

void ReplicatedStrategy::rejoin(StrategyContext context) {
  context_ = std::move(context);
  make_buckets();
  joined();
}

void ReplicatedStrategy::make_buckets() {
  auto parameters = unique_parameters(*model_);
  std::vector<ParameterLayout> layout;
  for (const auto& [name, parameter] : parameters)
    layout.push_back({name, parameter.sizes().vec(), parameter.scalar_type(), context_.trains(parameter)});
  agree_on_layout(layout, *context_.program_communicator);
  const auto caps = bucket_caps(context_.options, context_.program_communicator->device());
  buckets_.reset();  // its hooks leave the parameters before the new ones come, and its memory goes
  for (const auto& [name, parameter] : parameters) parameter.mutable_grad() = at::Tensor();
  buckets_ = std::make_unique<GradientBuckets>(std::move(parameters), std::move(layout),
                                               *context_.gradient_communicator, caps.cap_bytes, caps.first_cap_bytes,
                                               [this](std::int32_t bucket) { on_full(bucket); });
}

NamedTensors ReplicatedStrategy::replicated_tensors() {
  NamedTensors tensors;
  for (const auto& item : model_->named_parameters()) tensors.emplace_back(item.key(), item.value().detach());
  for (const auto& item : model_->named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

void ReplicatedStrategy::begin_step(std::int64_t step) {
  step_ = step;
  buckets_->begin_step();
}

void ReplicatedStrategy::begin_backward(bool synchronise, double weight) {
  synchronise_ = synchronise;
  buckets_->begin_backward(synchronise, weight);
}

void ReplicatedStrategy::end_backward() {
  if (synchronise_ && graph_ == nullptr) context_.progress->backward_ended.store(step_, std::memory_order_release);
  buckets_->end_backward();
}

void ReplicatedStrategy::on_full(std::int32_t bucket) {
  if (graph_ == nullptr) return bucket_full(bucket);
  written_->full.push_back(bucket);
  if (auto event = bucket_event(bucket)) {
    graph_->mark(*event);
    written_->events.push_back(std::move(event));
  }
}

void ReplicatedStrategy::begin_capture(DeviceGraph& graph) {
  graph_ = &graph;
  written_ = std::make_shared<Written>();
}

std::shared_ptr<const GraphCapture::HostPart> ReplicatedStrategy::end_capture() {
  graph_ = nullptr;
  if (written_) written_->trail = buckets_->trail();
  return std::exchange(written_, nullptr);
}

void ReplicatedStrategy::on_replay(const HostPart& part) {
  const auto& written = dynamic_cast<const Written&>(part);
  buckets_->follow(written.trail);
  for (const auto bucket : written.full)
    send_bucket(bucket);  // all of them while backward goes on, which the device has just begun
}

GradientSummary ReplicatedStrategy::reduce_gradients() {
  GradientSummary summary;
  summary.layout_hash = layout_hash(buckets_->layout()) ^ buckets_->plan().hash;
  summary.not_finite_parameter = buckets_->not_finite_parameter();
  summary.used = buckets_->used();
  combine_gradients(summary);
  // What is finite here may be beyond what f16 holds. On a device the reduced values are looked at anyway.
  if (summary.not_finite_parameter < 0 && context_.options.comm_hook == "fp16" &&
      context_.program_communicator->device().is_cpu()) {
    summary.not_finite_parameter = buckets_->find_not_finite();
    summary.made_by_hook = summary.not_finite_parameter >= 0;
  }
  if (!summary.device_checks.defined()) summary.device_checks = buckets_->device_checks();
  if (replicas_equal() && context_.options.broadcast_buffers && context_.world_size > 1)
    buffers_->stage(*context_.program_communicator);
  return summary;
}

double ReplicatedStrategy::gradient_norm() { return global_norm(buckets_->gradients()); }

void ReplicatedStrategy::scale_gradients(double factor) {
  for (const auto& flat : buckets_->flats()) flat.mul_(factor);
}

void ReplicatedStrategy::end_step(const std::vector<bool>& used, bool, bool commit) {
  buckets_->set_gradients(replicas_equal() ? used : buckets_->used());
  commit ? buffers_->commit() : buffers_->roll_back();
}

StrategyCapabilities ReplicatedStrategy::capabilities() {
  auto all = own_capabilities();
  if (!replicas_equal()) all.refuse<LateVoting>("has replicas that differ");
  if (hook() != nullptr && hook()->keeps_state())
    all.refuse<LateVoting>(
        "has a comm_hook with a state that goes back with a step, and the next step has used it by then");
  return all;
}

void ReplicatedStrategy::end_step_on_device(const std::vector<bool>& used, bool, const DeviceDecision& decision) {
  buckets_->set_gradients(used);
  if (decision.factor.defined()) {
    for (const auto& flat : buckets_->flats()) scale_by(flat, decision.factor);
  }
  buffers_->commit_unless(decision.skip);
}

void ReplicatedStrategy::roll_back() {
  buckets_->begin_step();
  buffers_->roll_back();
}

std::vector<HeldMemory> ReplicatedStrategy::held_memory() const {
  if (!buckets_) return {};
  const auto device = context_.program_communicator->device();
  return {{"parameters", bytes_on(device, model_->parameters())},
          {"buffers", bytes_on(device, model_->buffers())},
          {"gradient buckets", bytes_on(device, buckets_->flats())}};
}

// Of what differs between ranks, as copies. Collective.
NamedTensors ReplicatedStrategy::means_of_replicas() {
  NamedTensors different;
  const auto buffers = model_->named_buffers();
  for (const auto& [name, tensor] : replicated_tensors()) {
    if (differs(buffers.contains(name)) && tensor.is_floating_point()) different.emplace_back(name, tensor);
  }
  return means_over_ranks(different, *context_.program_communicator, "mean of the replicas");
}

bool ReplicatedStrategy::differs(bool is_buffer) const {
  return !replicas_equal() && (replicas_differ_now() || (is_buffer && !context_.options.broadcast_buffers));
}

std::vector<TensorPart> ReplicatedStrategy::state_parts(Optimizer& optimizer, int rank, int world_size) {
  torch::NoGradGuard no_grad;
  NamedTensors first, mine;          // what is rank 0's, what is each rank's own
  auto alike = means_of_replicas();  // what ranks have in common
  std::set<std::string> averaged;
  for (auto& [name, tensor] : alike) {
    averaged.insert(name);
    name = "model." + name;
  }
  const auto buffers = model_->named_buffers();
  for (const auto& [name, tensor] : replicated_tensors()) {
    const bool is_buffer = buffers.contains(name);
    if (!averaged.contains(name))
      (is_buffer || differs(is_buffer) ? first : alike).emplace_back("model." + name, tensor);
  }
  for (const auto& [name, tensor] : optimizer.state())
    (replicas_equal() ? alike : first).emplace_back("optimizer." + name, tensor);
  for (const auto& [name, tensor] : strategy_tensors()) alike.emplace_back("strategy." + name, tensor);
  for (const auto& [name, tensor] : hook_state())
    mine.emplace_back(hook_prefix() + std::to_string(rank) + "." + name, tensor);
  auto parts = parts_for(alike, rank, world_size);
  for (auto& part : parts_of_first(first, rank)) parts.push_back(std::move(part));
  for (auto& part : parts_for(mine, 0, 1)) parts.push_back(std::move(part));
  return parts;
}

void ReplicatedStrategy::read_state(const StateReader& state, Optimizer& optimizer) {
  ReplicatedState(*this).read_state(state, optimizer);
  if (hook() != nullptr) read_hook_state(state);
}

bool ReplicatedStrategy::hand_over(Optimizer&, const Parting&) {
  torch::NoGradGuard no_grad;
  const auto means = means_of_replicas();  // a rank may be lost before all are there
  std::map<std::string, at::Tensor> own;
  for (const auto& [name, tensor] : replicated_tensors()) own[name] = tensor;
  for (const auto& [name, mean] : means) own.at(name).copy_(mean);
  if (hook() != nullptr) hook()->hand_over(*context_.program_communicator);
  return true;
}

void ReplicatedStrategy::read_hook_state(const StateReader& state) {
  const auto prefix = hook_prefix(), own = prefix + std::to_string(context_.rank) + ".";
  std::set<std::string> ranks;
  NamedTensors mine;
  for (const auto& [name, entry] : state.entries()) {
    if (!name.starts_with(prefix)) continue;
    ranks.insert(name.substr(prefix.size(), name.find('.', prefix.size()) - prefix.size()));
    if (name.starts_with(own))
      mine.emplace_back(name.substr(own.size()), state.read(name).to(context_.gradient_communicator->device()));
  }
  if (ranks.empty()) return;
  if (ranks.size() == static_cast<std::size_t>(context_.world_size)) return hook()->load_state(mine);
  context_.announce("comm_hook " + context_.options.comm_hook +
                    " starts without its saved state: " + std::to_string(ranks.size()) +
                    " ranks saved it, and there are now " + std::to_string(context_.world_size));
}

}  // namespace troupe
