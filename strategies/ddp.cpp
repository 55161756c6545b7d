#include "strategies/ddp.hpp"

#include <cmath>
#include <cstring>
#include <sstream>

#include "tensor_io/gradient_clip.hpp"

namespace troupe {
namespace {

std::string join(const std::vector<std::int32_t>& order) {
  std::string text;
  for (const auto index : order) text += (text.empty() ? "" : " ") + std::to_string(index);
  return text;
}

std::vector<std::int32_t> split(const std::string& text) {
  std::vector<std::int32_t> order;
  std::istringstream in(text);
  for (std::int32_t index = 0; in >> index;) order.push_back(index);
  return order;
}

}  // namespace

Ddp::Ddp(StrategyContext context) : context_(std::move(context)), hook_(make_comm_hook(context_.options)) {}

void Ddp::attach(std::shared_ptr<torch::nn::Module> model) {
  model_ = std::move(model);
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (const auto& item : model_->named_parameters()) {
    names_.push_back(item.key());
    parameters.emplace_back(item.key(), item.value());
  }
  std::vector<ParameterLayout> layout;
  for (const auto& [name, parameter] : parameters) {
    layout.push_back({name, parameter.sizes().vec(), parameter.scalar_type(), parameter.requires_grad()});
  }
  agree_on_layout(layout, *context_.program_lane);
  const auto bytes = [](double mib) { return static_cast<std::int64_t>(mib * (1 << 20)); };
  buckets_ = std::make_unique<GradientBuckets>(std::move(parameters), *context_.bucket_lane, bytes(context_.options.bucket_cap_mb),
                                               bytes(context_.options.first_bucket_mb), [this](std::int32_t bucket) {
                                                 caf::anon_send(context_.reducer, BucketReady{step_, bucket});
                                               });
  buffers_ = std::make_unique<FlatBuffers>(*model_);
  broadcast_model();
  caf::anon_send(context_.reducer, InstallPlan{buckets_->bucket_views(), hook_});
}

void Ddp::broadcast_model() {
  NamedTensors tensors;
  for (const auto& item : model_->named_parameters()) tensors.emplace_back(item.key(), item.value());
  broadcast_tensors(tensors, *context_.program_lane, "parameters");
  buffers_->broadcast(*context_.program_lane);
}

void Ddp::install(const std::vector<std::int32_t>& order) {
  buckets_->rebuild(order);
  measured_ = true;
  caf::anon_send(context_.reducer, InstallPlan{buckets_->bucket_views(), hook_});
}

void Ddp::begin_step(std::int64_t step) {
  step_ = step;
  buckets_->begin_step();
}

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
  if (!buckets_->plan().buckets.empty()) summary.reduced = context_.wait_reduced(step_);
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

void Ddp::end_step(const std::vector<bool>& used, bool rebuild) {
  buckets_->set_gradients(used);
  rebuild_pending_ = rebuild;
}

void Ddp::after_update() {
  if (rebuild_pending_) {
    rebuild_pending_ = false;
    install(split(context_.program_lane->broadcast_bytes(join(last_arrival_), 0, "bucket order")));
  }
  if (context_.options.broadcast_buffers) buffers_->broadcast(*context_.program_lane);
}

std::map<std::string, std::string> Ddp::state() {
  return {{"ddp.bucket_order", join(buckets_->plan().order)}, {"ddp.measured", measured_ ? "1" : "0"}};
}

void Ddp::load_state(const std::map<std::string, std::string>& state) {
  const auto order = state.find("ddp.bucket_order");
  const auto measured = state.find("ddp.measured");
  if (order == state.end() || measured == state.end() || measured->second != "1") return;
  install(split(order->second));
}

std::string Ddp::describe() const {
  return "ddp: " + (buckets_ ? buckets_->plan().describe() : std::string("not attached")) + ", hook " + context_.options.comm_hook;
}

void register_ddp() {
  register_strategy("ddp", "every rank holds the model, gradients are averaged in buckets during backward",
                    [](StrategyContext context) { return std::make_unique<Ddp>(std::move(context)); });
}

}  // namespace troupe
