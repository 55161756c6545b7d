#include "strategies/sharded/sharded_strategy.hpp"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "actors/block/wrap_policy.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "strategies/replicated/bucket_caps.hpp"
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

ShardedMode sharded_mode(const StrategyOptions& options) {
  if (options.strategy == "zero1") return {.name = "zero1", .keep_whole_gradients = true};
  if (options.strategy == "zero2") return {.name = "zero2"};
  const auto& mode = options.fsdp_mode;
  if (mode == "full_shard") return {.name = mode, .gathers_units = true, .reshard_after_forward = true};
  if (mode == "shard_grad_op") return {.name = mode, .gathers_units = true};
  if (mode == "hybrid_shard")
    return {.name = mode, .gathers_units = true, .reshard_after_forward = true, .has_replicas = true};
  if (mode == "no_shard") return {.name = mode, .keep_whole_gradients = true, .gathers_units = true, .shards = false};
  throw Error(ErrorCode::usage, "fsdp_mode", "there is no mode '" + mode + "'",
              "known: full_shard, shard_grad_op, hybrid_shard, no_shard");
}

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
      elsewhere_.insert(parameter.unsafeGetTensorImpl());
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

void ShardedStrategy::make_groups() {
  group_ = context_.program_communicator;
  reduce_group_ = context_.gradient_communicator;
  replicas_ = nullptr;
  if (mode_.shards && !mode_.has_replicas) return;
  int color = 0;
  if (!mode_.shards) {
    color = context_.rank;
  } else if (context_.options.fsdp_shard_size > 0) {
    color = context_.rank / static_cast<int>(context_.options.fsdp_shard_size);
  } else {
    const auto& hosts = context_.hosts;
    for (color = 0; hosts[static_cast<std::size_t>(color)] != hosts[static_cast<std::size_t>(context_.rank)];) ++color;
  }
  const auto communicator = [&](Communicator& from, int of, const char* what) {
    std::shared_ptr<Communicator> made = from.split(of, context_.rank);
    context_.register_communicator(std::string(what) + " " + std::to_string(of) + " of " + from.name(), made);
    return made;
  };
  group_ = communicator(*context_.program_communicator, color, "shards");
  reduce_group_ = communicator(*context_.gradient_communicator, color, "shards");
  replicas_ = communicator(*context_.gradient_communicator, group_->rank(), "replicas");
  const int groups_of_shard = replicas_->world_size() * group_->world_size();
  if (groups_of_shard != context_.world_size) {
    throw Error(
        ErrorCode::usage, "hybrid_shard", "the hosts have unequal numbers of ranks, so their shards do not match",
        "start the same number of ranks on each host, or set fsdp_shard_size to a divisor of every host's number");
  }
}

std::vector<ShardedStrategy::Unit> ShardedStrategy::cut_into_buckets(
    const std::vector<std::int32_t>& parameters) const {
  const auto whole = shape();
  std::vector<ParameterLayout> shape;
  shape.reserve(parameters.size());
  for (const auto p : parameters) shape.push_back(whole[static_cast<std::size_t>(p)]);
  const auto caps = bucket_caps(context_.options, context_.program_communicator->device());
  const auto plan = plan_buckets(shape, registration_order(shape), caps.cap_bytes, caps.first_cap_bytes);
  std::vector<Unit> units;
  for (std::size_t b = plan.buckets.size(); b-- > 0;) {  // in the order of forward
    auto& unit = units.emplace_back();
    unit.members.name = "bucket " + std::to_string(b);
    for (const auto& slot : plan.buckets[b].slots)
      unit.members.parameters.push_back(parameters[static_cast<std::size_t>(slot.parameter)]);
  }
  Unit frozen{{"frozen", {}}, nullptr};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (!shape[i].requires_grad) frozen.members.parameters.push_back(parameters[i]);
  }
  if (!frozen.members.parameters.empty()) units.push_back(std::move(frozen));
  return units;
}

void ShardedStrategy::add_buckets(const std::vector<std::int32_t>& parameters, std::vector<Unit>& units) const {
  std::vector<std::int32_t> apart, others;
  for (const auto p : parameters)
    (part_.apart.contains(names_[static_cast<std::size_t>(p)]) ? apart : others).push_back(p);
  for (const auto& some : {apart, others}) {
    if (some.empty()) continue;
    for (auto& unit : cut_into_buckets(some)) units.push_back(std::move(unit));
  }
}

std::vector<ShardedStrategy::Unit> ShardedStrategy::units() const {
  std::vector<Unit> units;
  if (!mode_.gathers_units) {
    std::vector<std::int32_t> all(names_.size());
    std::iota(all.begin(), all.end(), 0);
    add_buckets(all, units);
    return units;
  }
  std::map<const c10::TensorImpl*, std::int32_t> index;
  for (std::size_t p = 0; p < found_.size(); ++p)
    index[found_[p].tensor.unsafeGetTensorImpl()] = static_cast<std::int32_t>(p);
  for (const auto& wrapped : wrap_units(model_, parse_wrap_policy(context_.options.fsdp_wrap))) {
    Unit unit{{wrapped.name, {}}, wrapped.block};
    for (const auto& parameter : wrapped.parameters) {
      const auto* impl = parameter.tensor.unsafeGetTensorImpl();
      if (!elsewhere_.contains(impl)) unit.members.parameters.push_back(index.at(impl));
    }
    const auto& members = unit.members.parameters;
    const bool has_apart = std::any_of(members.begin(), members.end(), [&](auto p) {
      return part_.apart.contains(names_[static_cast<std::size_t>(p)]);
    });
    if (unit.block == nullptr || has_apart) {  // the root's
      add_buckets(unit.members.parameters, units);
    } else if (!unit.members.parameters.empty()) {
      units.push_back(std::move(unit));
    }
  }
  return units;
}

void ShardedStrategy::hook_units(const std::vector<Unit>& units) {
  const auto& flats = parameters_->flats();
  if (std::any_of(flats.begin(), flats.end(), [](const auto& flat) { return flat.residence == Residence::gathered; })) {
    std::shared_ptr<Communicator> communicator = group_->split(0, context_.rank);
    context_.register_communicator("gathers of " + group_->name(), communicator);
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
  make_groups();

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
  parameters_ = std::make_unique<ShardedParameters>(found_, plan_shards(shape, members, group_->world_size()), group_,
                                                    *context_.program_communicator, placing);
  found_.clear();  // not before: a rank may be lost meanwhile
  settling_ = 3;
  ++placings_;
  hook_units(units);
  UnitGradients::Options reducing;
  reducing.keep_whole = mode_.keep_whole_gradients;
  reducing.every_micro_batch = options.fsdp_sync_micro_batches;
  reducing.reduce_dtype = dtype_of("reduce_dtype", options.reduce_dtype);
  mode_.meets_in_backward = true_anywhere(mode_.meets_in_backward || has_sync_batchnorm(*model_),
                                          *context_.program_communicator, "collectives in backward");
  reducing.never_waits = mode_.meets_in_backward;
  gradients_ =
      std::make_unique<UnitGradients>(*parameters_, reduce_group_, replicas_, reducing, [this](std::int32_t position) {
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
  rebuild_pending_ = measured_ = false;
  last_arrival_.clear();
  if (gradients_ && gradients_->waited_in_vain()) mode_.meets_in_backward = true;
  // In the reverse order of their making: each holds the ones before.
  hooks_.reset();
  gathers_.reset();
  gradients_.reset();
  if (parameters_) found_ = parameters_->take_parameters();
  parameters_.reset();
  place_model(false);
  move_sync_batchnorm(*model_, context_.program_communicator);
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
  if (!part_.is_cut) summary.device_checks = gradients_->device_checks(*group_);
  if (context_.options.broadcast_buffers && context_.world_size > 1) buffers_->stage(*context_.program_communicator);
  if (context_.rank == 0 && !(context_.options.static_graph && measured_)) {
    auto arrival = gradients_->arrival_order();
    // As in ddp: once measured, only an order that repeats is worth a change.
    summary.order_changed = arrival != gradients_->order() && (!measured_ || arrival == last_arrival_);
    last_arrival_ = std::move(arrival);
  }
  return summary;
}

double ShardedStrategy::gradient_norm() {
  double mine = 0;
  for (const auto& slice : parameters_->slices()) {
    if (slice.gradient.defined()) mine += sum_of_squares(slice.gradient);
  }
  return norm_over_ranks(mine, *group_);
}

void ShardedStrategy::scale_gradients(double factor) {
  for (const auto& flat : parameters_->flats()) {
    if (flat.gradient.defined()) flat.gradient.mul_(factor);
  }
}

void ShardedStrategy::end_step(const std::vector<bool>& used, bool rebuild, bool commit) {
  gradients_->set_gradients(used);
  rebuild_pending_ = rebuild;
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
  rebuild_pending_ = rebuild;
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
  if (!rebuild_pending_) return;
  rebuild_pending_ = false;
  measured_ = true;
  gradients_->set_order(
      order_of_text(context_.program_communicator->broadcast_bytes(order_text(last_arrival_), 0, "unit order")));
  caf::anon_send(context_.reducer, InstallPlan{gradients_->bucket_views(), gradients_->reduction()});
}

void ShardedStrategy::begin_evaluation() {
  if (gathers_) gathers_->begin_evaluation();
}

void ShardedStrategy::shard_optimizer(Optimizer& optimizer) {
  auto& placing = sharded_[&optimizer];
  const auto& groups = optimizer.groups();
  const bool has_slices = std::none_of(groups.begin(), groups.end(), [&](const auto& group) {
    return std::any_of(group.parameters.begin(), group.parameters.end(),
                       [&](const auto& entry) { return parameters_->has(entry.second); });
  });
  if (placing == placings_ && has_slices) return;
  placing = placings_;
  optimizer.restore_parameters();  // it may have slices of another cut
  optimizer.replace_parameters([&](const at::Tensor& parameter) {
    if (elsewhere_.contains(parameter.unsafeGetTensorImpl()))
      return at::empty({0}, parameter.options().requires_grad(false));
    auto slice = parameters_->slice_of(parameter);
    if (!slice.defined()) {
      throw Error(ErrorCode::usage, "optimizer", "it holds a parameter that the distributed model does not have",
                  "construct it from the model's parameters");
    }
    return slice;
  });
  if (restored_moments_.empty()) return;
  NamedTensors moments;
  for (const auto& group : optimizer.groups()) {
    for (const auto& [name, slice] : group.parameters) {
      const auto found = restored_moments_.extract(name);
      if (found.empty()) continue;
      for (const auto& [slot, value] : found.mapped()) moments.emplace_back(name + "." + slot, value);
    }
  }
  optimizer.load_state(moments);
}

void ShardedStrategy::gradient_arrived(const at::Tensor& parameter) {
  gradients_->arrived(parameters_->index_of(parameter));
}

std::string ShardedStrategy::describe() const {
  std::string text = name() + (name() == "fsdp" ? " " + mode_.name : "") + ": ";
  if (!parameters_) return text + "not attached";
  text += parameters_->plan().describe();
  const auto& flats = parameters_->flats();
  if (parameters_->offloads()) text += ", shards in the host's memory";
  if (!flats.empty() && flats.front().residence == Residence::mapped)
    text += ", parameters in memory that the ranks share";
  if (replicas_ && replicas_->world_size() > 1) text += ", " + std::to_string(replicas_->world_size()) + " replicas";
  return text;
}

void register_sharded() {
  const auto factory = [](StrategyContext context) { return std::make_unique<ShardedStrategy>(std::move(context)); };
  register_strategy("zero1", "every rank holds the model; optimizer state is sharded", factory);
  register_strategy("zero2", "every rank holds the model; optimizer state and gradients are sharded", factory);
  register_strategy("fsdp", "parameters, gradients and optimizer state are sharded (fsdp_mode)", factory);
}

}  // namespace troupe
