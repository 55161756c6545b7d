#include "strategies/replicated/ddp.hpp"

#include <algorithm>
#include <ctime>
#include <utility>

#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/layout/named_parameters.hpp"
#include "tensor_io/optimizer/element_update.hpp"

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

Ddp::Ddp(StrategyContext context)
    : ReplicatedStrategy(std::move(context)), hook_(make_comm_hook(this->context().options)) {
  const auto& options = this->context().options;
  if (!options.early_update) return;
  const auto refuse = [](const std::string& why, const char* instead) {
    throw Error(ErrorCode::usage, "early_update", why, instead);
  };
  if (options.comm_hook != "none")
    refuse("comm_hook " + options.comm_hook + " works on whole gradients, and early_update applies them piece by piece",
           "leave one of them out");
  if (!this->context().program_communicator->device().is_cpu())
    refuse("it works on the CPU only so far", "leave it out, or use --device cpu");
  early_hook_ = std::make_shared<EarlyUpdateHook>();
  hook_ = early_hook_;
}

void Ddp::set_early(std::shared_ptr<EarlyUpdate> update) {
  early_ = std::move(update);
  if (early_hook_) early_hook_->set(early_);
}

StrategyCapabilities Ddp::capabilities() {
  auto all = ReplicatedStrategy::capabilities();
  if (!early_hook_) all.refuse<EarlyUpdates>("has no early_update");
  return all;
}

void Ddp::attach(std::shared_ptr<torch::nn::Module> model) {
  for (const auto& item : model->named_parameters()) {
    if (!early_hook_ || !item.value().requires_grad() || item.value().scalar_type() == at::kFloat) continue;
    throw Error(ErrorCode::usage, "early_update",
                "parameter " + item.key() + " is " + c10::toString(item.value().scalar_type()) +
                    ", and early_update updates only f32",
                "leave it out");
  }
  ReplicatedStrategy::attach(std::move(model));
  send_plan();
}

void Ddp::bucket_full(std::int32_t bucket) {
  const auto& view = view_of(bucket);
  if (view.ready) view.ready->record(DeviceStream::current(view.flat.device()));
  send_bucket(bucket);
}

void Ddp::send_bucket(std::int32_t bucket) {
  const auto before = thread_cpu_ns();
  caf::anon_send(context().reducer, BucketReady{step(), bucket, steady_now_ns()});
  send_ns_ += thread_cpu_ns() - before - clock_cost_ns();
}

void Ddp::send_plan() {
  views_ = buckets().bucket_views();
  const auto device = context().gradient_communicator->device();
  if (!device.is_cpu() && !views_->empty()) {
    checks_ = at::zeros({static_cast<std::int64_t>(views_->size()), 2}, at::device(device).dtype(at::kDouble));
    for (auto& view : *views_) {  // of f64 each gradient is looked at, once they are there
      if (view.flat.scalar_type() != at::kDouble) view.checks = checks_.select(0, view.index);
    }
  }
  caf::anon_send(context().reducer, InstallPlan{views_, hook_});
}

void Ddp::rejoin(StrategyContext next) {
  const auto order = bucket_order();
  order_.decide(false);
  next_order_.clear();
  if (rolled_back_) hook_->roll_back(step());  // not before: only now the reducer has left the old communicator
  rolled_back_ = false;
  set_early(nullptr);  // its memory is the old communicator's: parameters stay there until the next step has been made
  views_.reset();      // the old buckets' memory goes before there are new ones
  ReplicatedStrategy::rejoin(std::move(next));
  // A rank that was interrupted while the others got their new order follows the plan that comes with the heal.
  buckets().rebuild(order);
  send_plan();
}

const std::vector<std::int32_t>& Ddp::bucket_order() const {
  return next_order_.empty() ? buckets().plan().order : next_order_;
}

void Ddp::install(const std::vector<std::int32_t>& order) {
  buckets().rebuild(order);
  set_early(
      nullptr);  // laid out as the buckets were; parameters stay where this step's forward may have kept views of them
  next_order_.clear();
  send_plan();
}

void Ddp::begin_step(std::int64_t step) {
  step_open_ = true;
  send_ns_ = 0;
  if (!next_order_.empty()) install(next_order_);
  ReplicatedStrategy::begin_step(step);
}

void Ddp::combine_gradients(GradientSummary& summary) {
  const auto& plan = buckets().plan();
  if (!plan.buckets.empty()) {
    summary.await(context(), step());
    // The reducer's stream is in order: after its last bucket all are reduced.
    const auto& last = views_->back();
    if (last.reduced) DeviceStream::current(last.flat.device()).wait(*last.reduced);
    summary.device_checks = buckets().device_checks(checks_);
    summary.message_us += static_cast<double>(send_ns_) / 1e3;
  }
  if (context().rank != 0 || (context().options.static_graph && order_.measured())) return;
  auto arrival = buckets().arrival_order();
  const bool differs = !std::equal(arrival.begin(), arrival.end(), plan.order.begin());
  summary.order_changed = order_.arrived(std::move(arrival), differs);
}

bool Ddp::begin_update(double lr) {
  if (early_) early_->begin(lr);
  return early_ != nullptr;
}

void Ddp::update(Optimizer& optimizer, double lr) {
  early_ ? early_->update(lr) : update_elements(optimizer, lr, "early_update");
}

void Ddp::end_step(const std::vector<bool>& used, bool rebuild, bool commit) {
  const bool early = early_ && early_->begun();
  // Nobody has the reduced gradients then.
  ReplicatedStrategy::end_step(early ? std::vector<bool>(used.size(), false) : used, rebuild, commit);
  if (early) commit ? early_->commit(used) : early_->drop();
  order_.decide(rebuild);
  if (!commit) return hook_->roll_back(step());
  step_open_ = false;
}

void Ddp::end_step_on_device(const std::vector<bool>& used, bool rebuild, const DeviceDecision& decision) {
  ReplicatedStrategy::end_step_on_device(used, rebuild, decision);
  order_.decide(rebuild);
  step_open_ = false;
}

void Ddp::roll_back() {
  rolled_back_ = step_open_;
  if (early_) early_->drop();
  ReplicatedStrategy::roll_back();
}

void Ddp::prepare_updates(Optimizer& optimizer) {
  if (!early_hook_ || early_ || !next_order_.empty()) return;  // the next step's buckets would want other copies
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : unique_parameters(model())) parameters.push_back(parameter);
  set_early(std::make_shared<EarlyUpdate>(parameters, plan(), optimizer, *context().gradient_communicator));
}

std::vector<HeldMemory> Ddp::held_memory() const {
  auto held = ReplicatedStrategy::held_memory();
  if (early_) held.push_back({"two copies of what is updated early", early_->bytes()});
  return held;
}

void Ddp::after_update() {
  // Laid out when the next step begins: until then the gradients stay where the program can read them.
  if (auto order = order_.take_over(*context().program_communicator, "bucket order")) next_order_ = std::move(*order);
}

std::map<std::string, std::string> Ddp::state() {
  return {{"ddp.bucket_order", order_text(bucket_order())}, {"ddp.measured", order_.measured() ? "1" : "0"}};
}

void Ddp::load_state(const std::map<std::string, std::string>& state) {
  const auto order = state.find("ddp.bucket_order");
  const auto measured = state.find("ddp.measured");
  if (order == state.end() || measured == state.end()) return;
  install(order_of_text(order->second));
  order_.set_measured(measured->second == "1");
}

std::string Ddp::describe() const {
  return "ddp: " + (attached() ? plan().describe() : std::string("not attached")) + ", hook " +
         context().options.comm_hook;
}

void register_ddp() {
  register_strategy("ddp", "every rank holds the model, gradients are averaged in buckets during backward",
                    [](StrategyContext context) { return std::make_unique<Ddp>(std::move(context)); });
}

}  // namespace troupe
