#include "strategies/sharded/sharded_strategy.hpp"

#include <malloc.h>

#include <algorithm>
#include <cmath>

#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "strategies/sharded/shard_tensors.hpp"
#include "strategies/sharded/sharded_state.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/kernels/gradient_clip.hpp"
#include "tensor_io/layers/deferred_init.hpp"
#include "tensor_io/layout/named_parameters.hpp"

namespace troupe {
namespace {

at::ScalarType dtype_of(const std::string& field, const std::string& text) {
  if (text == "float32") return at::ScalarType::Undefined;
  if (text == "bfloat16") return at::kBFloat16;
  if (text == "float16") return at::kHalf;
  throw Error(ErrorCode::usage, field, "'" + text + "' is not a dtype for training",
              "use float32, bfloat16 or float16");
}

void check_device(const std::string& name, const at::Tensor& parameter, c10::Device device) {
  if (parameter.device() == device || is_deferred(parameter)) return;
  throw Error(ErrorCode::usage, "parameter " + name,
              "it is on " + parameter.device().str() + ", this rank trains on " + device.str(),
              "let rank.distribute move the model; --device sets where to");
}

// Whole parameters were freed, and what the first steps make for good lies between what they free: glibc keeps the
// pages of both.
void give_back_free_memory() {
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)  // whose malloc is another: glibc's is not even set up
  malloc_trim(0);
#endif
}

}  // namespace

ShardedStrategy::ShardedStrategy(StrategyContext context)
    : context_(std::move(context)), mode_(sharded_mode(context_.options)) {
  if (context_.options.comm_hook != "none") {
    throw Error(ErrorCode::usage, "comm_hook",
                "'" + context_.options.comm_hook + "' reduces whole gradients, " + name() + " reduces shards",
                "leave it at none, or set reduce_dtype");
  }
}

ShardedStrategy::ShardedStrategy(StrategyContext context, ShardedMode mode, ShardedPart part)
    : context_(std::move(context)), mode_(std::move(mode)), part_(std::move(part)) {}

ShardedStrategy::~ShardedStrategy() = default;

void ShardedStrategy::collect_parameters() {
  for (const auto& [name, parameter] : unique_parameters(*model_)) {
    if (part_.elsewhere.contains(name)) {
      optimizers_.add_elsewhere(parameter);
      continue;
    }
    check_device(name, parameter, context_.program_communicator->device());
    const auto dense = parameter.is_non_overlapping_and_dense() ? parameter : parameter.detach().contiguous();
    names_.push_back(name);
    found_.push_back({name, parameter, parameter.scalar_type(), parameter.sizes().vec(), dense.strides().vec()});
  }
}

std::vector<ParameterLayout> ShardedStrategy::layout() const {
  std::vector<ParameterLayout> layout;
  for (const auto& parameter : parameters_ ? parameters_->parameters() : found_)
    layout.push_back({parameter.name, parameter.sizes, parameter.dtype, parameter.tensor.requires_grad()});
  return layout;
}

std::vector<ParameterLayout> ShardedStrategy::shape() const {
  auto shape = layout();
  const auto& parameters = parameters_ ? parameters_->parameters() : found_;
  for (std::size_t i = 0; i < shape.size(); ++i) shape[i].requires_grad = context_.trains(parameters[i].tensor);
  return shape;
}

std::vector<ShardedUnit> ShardedStrategy::units() const {
  return plan_units(model_, found_, shape(),
                    {.by_block = mode_.gathers_units,
                     .wrap = context_.options.fsdp_wrap,
                     .caps = bucket_caps(context_.options, context_.program_communicator->device()),
                     .apart = part_.apart});
}

void ShardedStrategy::hook_units(const std::vector<ShardedUnit>& units) {
  const auto& flats = parameters_->flats();
  if (std::any_of(flats.begin(), flats.end(), [](const auto& flat) { return flat.residence == Residence::gathered; })) {
    auto communicator = context_.split(*groups_.shards, 0, context_.rank, "gathers of " + groups_.shards->name());
    UnitGathers::Options options;
    options.prefetch = context_.options.fsdp_prefetch;
    options.prefetch_bytes = static_cast<std::int64_t>(context_.options.fsdp_prefetch_mb * (1 << 20));
    options.timeout = context_.timeout;
    options.for_phase = mode_.keeps_units;
    gathers_ = std::make_shared<UnitGathers>(*parameters_, std::move(communicator), options);
  }
  UnitHooks::Options options;
  options.reshard_after_forward = mode_.reshard_after_forward;
  options.keep_units = mode_.keeps_units;
  options.input_dtype = dtype_of("param_dtype", context_.options.param_dtype);
  if (!gathers_ && options.input_dtype == at::ScalarType::Undefined) return;
  hooks_ = std::make_unique<UnitHooks>(gathers_, options, units.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (units[u].block != nullptr) hooks_->add(*units[u].block, static_cast<std::int32_t>(u));
  }
}

void ShardedStrategy::attach(std::shared_ptr<torch::nn::Module> model) {
  place(std::move(model));
  if (context_.newcomer) restore();
}

void ShardedStrategy::place(std::shared_ptr<torch::nn::Module> model) {
  model_ = std::move(model);
  collect_parameters();
  place_model(!context_.newcomer);
  if (const auto dtype = dtype_of("buffer_dtype", context_.options.buffer_dtype); dtype != at::ScalarType::Undefined) {
    torch::NoGradGuard no_grad;
    for (auto& item : model_->named_buffers()) {
      if (item.value().is_floating_point()) item.value().set_data(item.value().to(dtype));
    }
  }
  buffers_ = std::make_unique<FlatBuffers>(*model_);
  if (!context_.newcomer) buffers_->broadcast(*context_.program_communicator);
}

// The model's parameters become views of flat ones, cut for the ranks that there are now.
void ShardedStrategy::place_model(bool keep_values) {
  const auto& options = context_.options;
  const auto shape = this->shape();
  agree_on_layout(shape, *context_.program_communicator);
  groups_ = make_shard_groups(context_, mode_);

  const auto units = this->units();
  std::vector<UnitMembers> members;
  ShardedParameters::Options placing;
  placing.mapped = options.fsdp_mapped;
  placing.cpu_offload = options.fsdp_cpu_offload;
  placing.param_dtype = dtype_of("param_dtype", options.param_dtype);
  placing.keep_values = keep_values;
  for (const auto& unit : units) {
    members.push_back(unit.members);
    placing.otherwise.push_back(unit.block != nullptr && mode_.gathers_units ? Residence::gathered
                                                                             : Residence::replica);
  }
  parameters_ = std::make_unique<ShardedParameters>(found_, plan_shards(shape, members, groups_.shards->world_size()),
                                                    groups_.shards, *context_.program_communicator, placing);
  found_.clear();  // not before: a rank may be lost meanwhile
  settling_ = 3;
  optimizers_.placed_anew();
  hook_units(units);
  UnitGradients::Options reducing;
  reducing.keep_whole = mode_.keep_whole_gradients;
  reducing.every_micro_batch = options.fsdp_sync_micro_batches;
  reducing.reduce_dtype = dtype_of("reduce_dtype", options.reduce_dtype);
  mode_.meets_in_backward = true_anywhere(mode_.meets_in_backward || has_sync_batchnorm(*model_),
                                          *context_.program_communicator, "collectives in backward");
  reducing.never_waits = mode_.meets_in_backward;
  gradients_ = std::make_unique<UnitGradients>(
      *parameters_, groups_.reducing, groups_.replicas, reducing, [this](std::int32_t position) {
        caf::anon_send(context_.reducer, BucketReady{step_, position, steady_now_ns()});
      });
  caf::anon_send(context_.reducer, InstallPlan{gradients_->bucket_views(), gradients_->reduction()});
}

void ShardedStrategy::rejoin(StrategyContext context) {
  replace(std::move(context));
  restore();
}

void ShardedStrategy::replace(StrategyContext context) {
  context_ = std::move(context);
  order_ = {};
  if (gradients_ && gradients_->waited_in_vain()) mode_.meets_in_backward = true;
  // In the reverse order of their making: each holds the ones before.
  hooks_.reset();
  gathers_.reset();
  gradients_.reset();
  if (parameters_) found_ = parameters_->take_parameters();
  parameters_.reset();
  groups_ = {};
  place_model(false);
}

NamedTensors ShardedStrategy::replicated_tensors() { return {}; }

void ShardedStrategy::set_rollback_point() { buffers_->begin(); }

void ShardedStrategy::begin_step(std::int64_t step) {
  parameters_->check_unchanged(name());
  step_ = step;
  if (settling_ > 0) --settling_, give_back_free_memory();
  gradients_->begin_step();
  if (gathers_ && mode_.keeps_units) gathers_->begin_phase();
}

void ShardedStrategy::begin_backward(bool synchronise, double weight) {
  last_ = synchronise;
  reduces_ = gradients_->begin_backward(synchronise, weight);
}

void ShardedStrategy::end_backward() {
  if (last_) context_.progress->backward_ended.store(step_, std::memory_order_release);
  gradients_->end_backward();
  if (hooks_) hooks_->end_backward();
  if (reduces_ && !last_ && !gradients_->order().empty()) {
    end_micro_batchs_gathers();
    (void)context_.wait_reduced(step_);
    gradients_->receive();
  }
}

// Before a wait for the others' gradients: a rank that comes to them by way of other units has them first. What broke
// is told, and the step given up, in reduce_gradients.
void ShardedStrategy::end_micro_batchs_gathers() {
  if (!gathers_) return;
  try {
    gathers_->end_phase();
  } catch (const Error& error) {
    if (!may_be_recovered(error.report().code)) throw;
  }
}

GradientSummary ShardedStrategy::reduce_gradients() {
  GradientSummary summary;
  summary.layout_hash = layout_hash(layout()) ^ parameters_->plan().hash;
  for (const auto f : gradients_->order())
    summary.layout_hash = summary.layout_hash * 1099511628211ull + static_cast<std::uint64_t>(f);
  summary.not_finite_parameter = gradients_->not_finite_parameter();
  summary.used = gradients_->used();
  if (gathers_) gathers_->end_phase();
  if (!gradients_->order().empty()) summary.await(context_, step_);
  gradients_->receive();
  if (!part_.is_cut) summary.device_checks = gradients_->device_checks(*groups_.shards);
  if (context_.options.broadcast_buffers && context_.world_size > 1) buffers_->stage(*context_.program_communicator);
  if (context_.rank == 0 && !(context_.options.static_graph && order_.measured())) {
    const auto arrival = gradients_->arrival_order();
    summary.order_changed = order_.arrived(arrival, arrival != gradients_->order());
  }
  return summary;
}

double ShardedStrategy::gradient_norm() {
  double mine = 0;
  for (const auto& slice : parameters_->slices()) {
    if (slice.gradient.defined()) mine += sum_of_squares(slice.gradient);
  }
  return norm_over_ranks(mine, *groups_.shards);
}

void ShardedStrategy::scale_gradients(double factor) {
  for (const auto& flat : parameters_->flats()) {
    if (flat.gradient.defined()) flat.gradient.mul_(factor);
  }
}

void ShardedStrategy::end_step(const std::vector<bool>& used, bool rebuild, bool commit) {
  gradients_->set_gradients(used);
  order_.decide(rebuild);
  commit ? buffers_->commit() : buffers_->roll_back();
}

StrategyCapabilities ShardedStrategy::capabilities() {
  auto all = own_capabilities();
  if (context_.options.fsdp_cpu_offload)
    all.refuse<LateVoting>("with fsdp_cpu_offload has the optimizer in the host's memory, which waits for gradients");
  return all;
}

void ShardedStrategy::end_step_on_device(const std::vector<bool>& used, bool rebuild, const DeviceDecision& decision) {
  gradients_->set_gradients(used);
  order_.decide(rebuild);
  for (const auto& flat : parameters_->flats()) {
    if (decision.factor.defined() && flat.gradient.defined()) scale_by(flat.gradient, decision.factor);
  }
  buffers_->commit_unless(decision.skip);
}

void ShardedStrategy::roll_back() {
  gradients_->begin_step();
  buffers_->roll_back();
}

void ShardedStrategy::after_update() {
  parameters_->publish();
  const auto order = order_.take_over(*context_.program_communicator, "unit order");
  if (!order) return;
  gradients_->set_order(*order);
  caf::anon_send(context_.reducer, InstallPlan{gradients_->bucket_views(), gradients_->reduction()});
}

void ShardedStrategy::begin_evaluation() {
  if (gathers_) gathers_->begin_evaluation();
}

void ShardedStrategy::shard_optimizer(Optimizer& optimizer) { optimizers_.slice(optimizer, *parameters_); }

std::vector<TensorPart> ShardedStrategy::state_parts(Optimizer& optimizer, int rank, int world_size) {
  shard_optimizer(optimizer);
  return parts_of_shards(*model_, *parameters_, optimizer,
                         {rank, world_size, groups_.replica(), groups_.replica_count()});
}

void ShardedStrategy::read_state(const StateReader& state, Optimizer& optimizer) {
  shard_optimizer(optimizer);
  if (parameters_->offloads()) context_.program_communicator->wait_on_host("copies of the shards");  // still read
  read_shards(state, *model_, *parameters_, optimizer);
}

void ShardedStrategy::take_snapshot(Optimizer& optimizer, std::uint64_t generation, std::int64_t step,
                                    const std::string& note) {
  exchange_copies(optimizer, {{}, generation, step, note});
}

void ShardedStrategy::exchange_copies(Optimizer& optimizer, const Parting& parting) {
  const auto& group = *groups_.shards;
  snapshots_.exchange(ShardPacker({parting.generation, parting.step, group.rank(), group.world_size()}, parting.note,
                                  snapshot_tensors(optimizer)),
                      context_.hosts, *context_.program_communicator, parting.leaving);
}

bool ShardedStrategy::hand_over(Optimizer& optimizer, const Parting& parting) {
  const auto size = static_cast<int>(context_.options.fsdp_shard_size);
  if (mode_.has_replicas && !has_equal_groups_without(parting.leaving, context_.hosts, size)) return false;
  exchange_copies(optimizer, parting);
  return true;
}

NamedTensors ShardedStrategy::snapshot_tensors(Optimizer& optimizer) {
  // The first snapshot of a generation is taken when the step's forward has moved the buffers.
  return tensors_of_shard(*parameters_, optimizer, groups_.shards->rank() == 0 ? buffers_->before() : NamedTensors());
}

void ShardedStrategy::restore() {
  torch::NoGradGuard no_grad;
  forget_restored_moments();
  snapshots_.restore(*context_.program_communicator,
                     [this](const ShardCopy& copy) { place_copy(copy.held.shard, copy); });
  parameters_->publish();
}

void ShardedStrategy::place_copy(std::int32_t shard, const ShardCopy& copy) {
  place_shard_tensors(copy, shard, *model_, *parameters_, optimizers_);
}

void ShardedStrategy::gradient_arrived(const at::Tensor& parameter) {
  gradients_->arrived(parameters_->index_of(parameter));
}

std::vector<HeldMemory> ShardedStrategy::held_memory() const {
  if (!parameters_ || !gradients_) return {};
  const auto device = parameters_->device();
  std::vector<at::Tensor> wholes, masters, shards;
  for (const auto& flat : parameters_->flats()) {
    const bool is_part = flat.whole.defined() && flat.master.is_alias_of(flat.whole);
    if (flat.residence != Residence::gathered) wholes.push_back(flat.whole);  // else the gathers have it
    if (!is_part) masters.push_back(flat.master);
    shards.push_back(flat.gradient);
  }
  return {{"whole parameters", bytes_on(device, wholes)},
          {"parameter shards", bytes_on(device, masters)},
          {"gathered units", gathers_ ? gathers_->memory_bytes() : 0},
          {"gradient shards", bytes_on(device, shards)},
          {"whole gradients", gradients_->buffer_bytes()},
          {"buffers", bytes_on(device, model_->buffers())}};
}

std::string ShardedStrategy::describe() const {
  std::string text = name() + (name() == "fsdp" ? " " + mode_.name : "") + ": ";
  if (!parameters_) return text + "not attached";
  text += parameters_->plan().describe();
  const auto& flats = parameters_->flats();
  if (parameters_->offloads()) text += ", shards in the host's memory";
  if (!flats.empty() && flats.front().residence == Residence::mapped)
    text += ", parameters in memory that the ranks share";
  if (groups_.replica_count() > 1) text += ", " + std::to_string(groups_.replica_count()) + " replicas";
  return text;
}

void register_sharded() {
  const auto factory = [](StrategyContext context) { return std::make_unique<ShardedStrategy>(std::move(context)); };
  register_strategy("zero1", "every rank holds the model; optimizer state is sharded", factory);
  register_strategy("zero2", "every rank holds the model; optimizer state and gradients are sharded", factory);
  register_strategy("fsdp", "parameters, gradients and optimizer state are sharded (fsdp_mode)", factory);
}

}  // namespace troupe
