#include "strategies/ddp.hpp"

#include <cmath>
#include <cstring>
#include <ctime>

#include "strategies/sync_batch_norm.hpp"
#include "tensor_io/gradient_clip.hpp"
#include "tensor_io/steady_time.hpp"

namespace troupe {
namespace {

// What a thread itself used: where rank and reducer share a core, the reducer may work while the sender stands still.
std::int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// What reading that clock costs: a system call, about a tenth of sending a message.
std::int64_t clock_cost_ns() {
  static const std::int64_t cost = [] {
    constexpr int kReadings = 64;
    const auto begin = thread_cpu_ns();
    for (int i = 0; i < kReadings; ++i) thread_cpu_ns();
    return (thread_cpu_ns() - begin) / kReadings;
  }();
  return cost;
}

}  // namespace

Ddp::Ddp(StrategyContext context) : context_(std::move(context)), hook_(make_comm_hook(context_.options)) {}

void Ddp::attach(std::shared_ptr<torch::nn::Module> model) {
  model_ = std::move(model);
  for (const auto& item : model_->named_parameters()) names_.push_back(item.key());
  make_buckets();
  buffers_ = std::make_unique<FlatBuffers>(*model_);
  if (!context_.newcomer) broadcast_model();
  caf::anon_send(context_.reducer, InstallPlan{buckets_->bucket_views(), hook_});
}

void Ddp::make_buckets() {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<ParameterLayout> layout;
  for (const auto& item : model_->named_parameters()) {
    const auto& parameter = item.value();
    parameters.emplace_back(item.key(), parameter);
    layout.push_back({item.key(), parameter.sizes().vec(), parameter.scalar_type(), parameter.requires_grad()});
  }
  agree_on_layout(layout, *context_.program_lane);
  const auto bytes = [](double mib) { return static_cast<std::int64_t>(mib * (1 << 20)); };
  buckets_.reset();  // its hooks leave the parameters before the new ones come
  buckets_ = std::make_unique<GradientBuckets>(std::move(parameters), *context_.bucket_lane, bytes(context_.options.bucket_cap_mb),
                                               bytes(context_.options.first_bucket_mb), [this](std::int32_t bucket) {
                                                 const auto before = thread_cpu_ns();
                                                 caf::anon_send(context_.reducer, BucketReady{step_, bucket, steady_now_ns()});
                                                 send_ns_ += thread_cpu_ns() - before - clock_cost_ns();
                                               });
}

void Ddp::rejoin(StrategyContext context) {
  const auto order = bucket_order();
  context_ = std::move(context);
  rebuild_pending_ = false;
  next_order_.clear();
  if (rolled_back_) hook_->roll_back(step_);  // not before: only now the reducer has left the old lane
  rolled_back_ = false;
  make_buckets();
  // A rank that was interrupted while the others got their new order follows the plan that comes with the heal.
  buckets_->rebuild(order);
  move_sync_batchnorm(*model_, context_.program_lane);
  caf::anon_send(context_.reducer, InstallPlan{buckets_->bucket_views(), hook_});
}

NamedTensors Ddp::replicated_tensors() {
  NamedTensors tensors;
  for (const auto& item : model_->named_parameters()) tensors.emplace_back(item.key(), item.value().detach());
  for (const auto& item : model_->named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

void Ddp::broadcast_model() {
  NamedTensors tensors;
  for (const auto& item : model_->named_parameters()) tensors.emplace_back(item.key(), item.value());
  broadcast_tensors(tensors, *context_.program_lane, "parameters");
  buffers_->broadcast(*context_.program_lane);
}

const std::vector<std::int32_t>& Ddp::bucket_order() const { return next_order_.empty() ? buckets_->plan().order : next_order_; }

void Ddp::install(const std::vector<std::int32_t>& order) {
  buckets_->rebuild(order);
  measured_ = true;
  next_order_.clear();
  caf::anon_send(context_.reducer, InstallPlan{buckets_->bucket_views(), hook_});
}

void Ddp::begin_step(std::int64_t step) {
  step_ = step;
  step_open_ = true;
  send_ns_ = 0;
  if (!next_order_.empty()) install(next_order_);
  buckets_->begin_step();
}

void Ddp::remember_state() { buffers_->begin(); }

void Ddp::begin_backward(bool synchronise, double weight) {
  synchronise_ = synchronise;
  buckets_->begin_backward(synchronise, weight);
}

void Ddp::end_backward() {
  if (synchronise_) context_.progress->backward_ended.store(step_, std::memory_order_release);
  buckets_->end_backward();
}

GradientSummary Ddp::reduce_gradients() {
  GradientSummary summary;
  summary.layout_hash = layout_hash(buckets_->layout()) ^ buckets_->plan().hash;
  summary.not_finite_parameter = buckets_->not_finite_parameter();
  summary.used = buckets_->used();
  if (!buckets_->plan().buckets.empty()) {
    summary.await(context_, step_);
    summary.message_us += static_cast<double>(send_ns_) / 1e3;
  }
  if (context_.options.broadcast_buffers && context_.world_size > 1) buffers_->stage(*context_.program_lane);
  if (context_.rank == 0 && !(context_.options.static_graph && measured_)) {
    auto arrival = buckets_->arrival_order();
    const bool differs = arrival != std::vector<std::int32_t>(buckets_->plan().order.begin(),
                                                              buckets_->plan().order.begin() + static_cast<std::ptrdiff_t>(arrival.size()));
    // Once measured, only an order that repeats is worth new buckets; a model that alternates would rebuild for ever.
    summary.order_changed = differs && !arrival.empty() && (!measured_ || arrival == last_arrival_);
    last_arrival_ = std::move(arrival);
  }
  return summary;
}

double Ddp::gradient_norm() { return global_norm(buckets_->gradients()); }

void Ddp::scale_gradients(double factor) {
  for (const auto& flat : buckets_->flats()) flat.mul_(factor);
}

void Ddp::end_step(const std::vector<bool>& used, bool rebuild, bool commit) {
  buckets_->set_gradients(used);
  rebuild_pending_ = rebuild;
  commit ? buffers_->commit() : buffers_->roll_back();
  if (commit) step_open_ = false;
}

void Ddp::roll_back() {
  rolled_back_ = step_open_;
  buckets_->begin_step();
  buffers_->roll_back();
}

void Ddp::after_update() {
  if (rebuild_pending_) {
    rebuild_pending_ = false;
    // Laid out when the next step begins: until then the gradients stay where the program can read them.
    next_order_ = order_of_text(context_.program_lane->broadcast_bytes(order_text(last_arrival_), 0, "bucket order"));
    measured_ = true;
  }
}

std::map<std::string, std::string> Ddp::state() {
  return {{"ddp.bucket_order", order_text(bucket_order())}, {"ddp.measured", measured_ ? "1" : "0"}};
}

void Ddp::load_state(const std::map<std::string, std::string>& state) {
  const auto order = state.find("ddp.bucket_order");
  const auto measured = state.find("ddp.measured");
  if (order == state.end() || measured == state.end()) return;
  install(order_of_text(order->second));
  measured_ = measured->second == "1";
}

std::string Ddp::describe() const {
  return "ddp: " + (buckets_ ? buckets_->plan().describe() : std::string("not attached")) + ", hook " + context_.options.comm_hook;
}

void register_ddp() {
  register_strategy("ddp", "every rank holds the model, gradients are averaged in buckets during backward",
                    [](StrategyContext context) { return std::make_unique<Ddp>(std::move(context)); });
}

}  // namespace troupe
