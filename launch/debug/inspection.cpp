#include "launch/debug/inspection.hpp"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>

#include "actors/strategy/strategy.hpp"
#include "launch/config/config.hpp"
#include "launch/loop/rank.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/process/stop_signals.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/base/random_seed.hpp"
#include "tensor_io/files/xxh3.hpp"
#include "tensor_io/layers/deferred_init.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tensor_io/layout/named_parameters.hpp"

namespace troupe {
namespace {

constexpr std::size_t kGradientValues = 262'144;                 // of all parameters together
constexpr std::int64_t kDigestedBytes = std::int64_t{64} << 20;  // of samples
constexpr std::size_t kDigestedBatches = 512;
constexpr std::size_t kSkippedSteps = 20;  // that are not applied (a loss scale that has to fall), for the gradients

std::span<const std::byte> bytes_of(const at::Tensor& dense) {
  return {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()};
}

std::string digest_of(const at::Tensor& tensor) {
  return xxh3_text(xxh3(bytes_of(tensor.detach().to(at::kCPU).contiguous())));
}

// `infinity_too`: a mask may have it.
InspectedTensor outline(const std::string& name, const at::Tensor& tensor, bool infinity_too = true) {
  InspectedTensor seen;
  seen.name = name;
  seen.shape = c10::str(tensor.sizes());
  seen.dtype = c10::toString(tensor.scalar_type());
  seen.device = tensor.device().str();
  seen.dense = tensor.is_non_overlapping_and_dense();
  seen.requires_grad = tensor.requires_grad();
  if (tensor.is_floating_point() && !is_deferred(tensor)) {
    const auto values = tensor.detach();
    seen.finite = !(infinity_too ? values.isfinite().logical_not() : values.isnan()).any().item<bool>();
  }
  return seen;
}

// Of LibTorch's and ours: what they drop is 0 from now on.
template <class... Dropouts>
bool switch_off(torch::nn::Module& module) {
  const auto one = [&](auto* dropout) {
    if (dropout == nullptr || dropout->options.p() == 0) return false;
    dropout->options.p(0);
    return true;
  };
  return (one(dynamic_cast<Dropouts*>(&module)) || ...);
}

template <class Recurrent>
bool switch_off_between_layers(torch::nn::Module& module) {
  auto* const layers = dynamic_cast<Recurrent*>(&module);
  if (layers == nullptr || layers->options_base.dropout() == 0) return false;
  layers->options_base.dropout(0);
  return true;
}

bool switch_off_dropout(torch::nn::Module& module) {
  using namespace torch::nn;
  if (switch_off_between_layers<LSTMImpl>(module) || switch_off_between_layers<GRUImpl>(module) ||
      switch_off_between_layers<RNNImpl>(module))
    return true;
  if (auto* attention = dynamic_cast<torch::nn::MultiheadAttentionImpl*>(&module)) {
    const bool drops = attention->options.dropout() > 0;
    attention->options.dropout(0);
    return drops;
  }
  return switch_off<torch::nn::DropoutImpl, torch::nn::Dropout2dImpl, torch::nn::Dropout3dImpl,
                    torch::nn::AlphaDropoutImpl, torch::nn::FeatureAlphaDropoutImpl, nn::DropoutImpl>(module);
}

bool takes_own_statistics(const torch::nn::Module& module, bool synchronised) {
  if (module.name().find("BatchNorm") == std::string::npos) return false;
  return !synchronised || dynamic_cast<const nn::SynchronisedStatistics*>(&module) == nullptr;
}

std::size_t values_of_each(std::size_t gradients) {
  return std::max<std::size_t>(64, kGradientValues / std::max<std::size_t>(1, gradients));
}

std::vector<double> some_values(const at::Tensor& tensor, std::size_t most) {
  const auto numel = tensor.numel(), count = std::min<std::int64_t>(numel, static_cast<std::int64_t>(most));
  if (count == 0) return {};
  const auto at_index = at::arange(count, at::kLong).mul(numel).div(count, "floor").to(tensor.device());
  const auto some = tensor.detach().reshape({-1}).index_select(0, at_index).to(at::kCPU, at::kDouble).contiguous();
  const auto* first = some.const_data_ptr<double>();
  return {first, first + count};
}

}  // namespace

/// Its step puts each gradient in the place of its parameter. Then the strategy makes them whole for all, as it does
/// with parameters, and they can be gathered: whatever the strategy.
class Inspection::GradientsInPlace final : public Optimizer {
 public:
  explicit GradientsInPlace(Optimizer& inner) : inner_(inner) {}
  bool is_done() const noexcept { return done_; }
  const std::vector<std::string>& without_gradient() const noexcept { return without_; }

  std::string name() const override { return inner_.name(); }
  void step(double) override {
    torch::NoGradGuard no_grad;
    for (const auto& group : inner_.groups()) {
      for (const auto& [name, parameter] : group.parameters) {
        before_.emplace_back(parameter, parameter.detach().clone());
        const auto& gradient = parameter.grad();
        if (!gradient.defined()) without_.push_back(name);
        gradient.defined() ? parameter.detach().copy_(gradient) : parameter.detach().zero_();
      }
    }
    done_ = true;
  }
  /// The parameters are what they were.
  void put_back() {
    torch::NoGradGuard no_grad;
    for (const auto& [parameter, values] : before_) parameter.detach().copy_(values);
    before_.clear();
  }
  bool has_own_rates() const override { return inner_.has_own_rates(); }
  double first_rate(double lr) const override { return inner_.first_rate(lr); }
  NamedTensors state() override { return inner_.state(); }
  void load_state(const NamedTensors& state) override { inner_.load_state(state); }
  const std::vector<ParameterGroup>& groups() const override { return inner_.groups(); }
  void replace_parameters(const Replacement& replacement) override { inner_.replace_parameters(replacement); }
  void restore_parameters() override { inner_.restore_parameters(); }

 private:
  Optimizer& inner_;
  bool done_ = false;
  std::vector<std::string> without_;
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
};

// The gradient of one parameter, as backward adds it up.
struct Inspection::LocalGradient {
  InspectedGradient kept;
  std::size_t most = 0;  // values
  bool open = true;      // false: the inspection has what it wanted

  void add(const at::Tensor& gradient) {
    if (!open) return;
    const auto values = some_values(gradient, most);
    kept.values.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) kept.values[i] += values[i];
  }
};

Inspection::Inspection(const Rank& rank, InspectionRequest request, std::map<std::string, std::string> put_aside)
    : request_(std::move(request)) {
  record_.rank = rank.rank();
  record_.world_size = rank.world_size();
  record_.device = rank.device().str();
  record_.put_aside = std::move(put_aside);
}

Inspection::~Inspection() { write(); }

void Inspection::built(torch::nn::Module& model) {
  model_ = &model;
  record_.model.clear();
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool buffer) {
    auto seen = outline(name, tensor, !buffer);
    seen.buffer = buffer;
    if (!is_deferred(tensor)) seen.digest = digest_of(tensor);
    record_.model.push_back(std::move(seen));
  };
  for (const auto& [name, parameter] : unique_parameters(model)) add(name, parameter, false);
  for (const auto& item : model.named_buffers()) add(item.key(), item.value(), true);
  if (!request_.gradients) return;
  for (const auto& item : model.named_modules()) {
    if (switch_off_dropout(*item.value())) record_.dropouts.push_back(item.key());
  }
}

void Inspection::distributed(Rank& rank) {
  const auto& config = rank.config();
  auto& strategy = system_of(rank).compute().strategy();
  record_.data_rank = system_of(rank).compute().data_shard().index;
  record_.strategy = strategy.name();
  record_.comparable = strategy.replicas_equal() && system_of(rank).compute().shares_per_rank() == 0;
  record_.settings = config_texts(config);
  for (const auto& item : model_->named_modules()) {
    if (takes_own_statistics(*item.value(), config.sync_batchnorm)) record_.batch_norms.push_back(item.key());
  }
  if (request_.gradients) keep_local_gradients(*model_);
  if (request_.draw != 0) seed_generator(request_.draw, {0}, rank.device());
}

// Of parameters that are leaves still; a sharded strategy has others in their places.
void Inspection::keep_local_gradients(torch::nn::Module& model) {
  const auto parameters = unique_parameters(model);
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.is_leaf() || !parameter.requires_grad()) continue;
    auto local = std::make_shared<LocalGradient>();
    local->kept.name = name;
    local->most = values_of_each(parameters.size());
    parameter.register_hook([local](const at::Tensor& gradient) {
      local->add(gradient);
      return gradient;
    });
    local_.push_back(std::move(local));
  }
}

void Inspection::batch(const NamedTensors& fields) {
  if (record_.batch.empty()) {
    for (const auto& [name, tensor] : fields) record_.batch.push_back(outline(name, tensor, false));
  }
  if (request_.draw != 0 && !fields.empty())
    seed_generator(request_.draw, {record_.samples.size() + 1}, fields[0].second.device());
  if (record_.samples.size() >= kDigestedBatches || digested_ > kDigestedBytes) return;
  auto& digests = record_.samples.emplace_back();
  NamedTensors here;
  std::int64_t count = -1;
  for (const auto& [name, tensor] : fields) {
    if (tensor.dim() == 0 || (count >= 0 && tensor.size(0) != count)) continue;
    here.emplace_back(name, tensor.detach().to(at::kCPU).contiguous());
    digested_ += static_cast<std::int64_t>(tensor.nbytes());
    count = tensor.size(0);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    Xxh3Stream hash;
    for (const auto& [name, tensor] : here) hash.update(bytes_of(tensor.select(0, i)));
    digests.push_back(xxh3_text(hash.take()));
  }
}

void Inspection::loss(const Loss& loss) {
  if (record_.loss.empty()) record_.loss.push_back(outline("loss", loss.value));
}

Optimizer& Inspection::in_place_of(Optimizer& optimizer) {
  if (!request_.gradients || dynamic_cast<GradientsInPlace*>(&optimizer) != nullptr) return optimizer;
  auto& replaced = replaced_[&optimizer];
  if (!replaced) replaced = std::make_unique<GradientsInPlace>(optimizer);
  return *replaced;
}

void Inspection::take_gradients(Rank& rank, GradientsInPlace& optimizer) {
  for (const auto& local : local_) {
    local->open = false;
    record_.gradients.local.push_back(std::move(local->kept));
  }
  const auto gradients = rank.state_dict(optimizer);
  optimizer.put_back();
  if (!rank.is_main()) return;
  record_.gradients.unused = optimizer.without_gradient();
  std::set<std::string> trained;
  for (const auto& seen : record_.model) {
    if (!seen.buffer && seen.requires_grad) trained.insert(seen.name);
  }
  for (const auto& [name, tensor] : gradients) {
    if (trained.contains(name))
      record_.gradients.whole.push_back({name, some_values(tensor, values_of_each(gradients.size()))});
  }
}

void Inspection::stepped(Rank& rank, Optimizer& optimizer, const StepReport& report) {
  if (report.repeat || report.pending || record_.ended) return;
  record_.losses.push_back(report.loss);
  record_.pace.step_ms.push_back(report.step_ms);
  auto& own = record_.pace.own_ms.emplace_back();
  for (const auto& times : report.own) own.push_back(static_cast<double>(times.total_ms()));
  record_.pace.exposed = rank.exposed_communication();
  const auto steps = record_.losses.size();
  auto* const in_place = dynamic_cast<GradientsInPlace*>(&optimizer);
  if (in_place != nullptr && in_place->is_done()) {
    record_.gradients.step = static_cast<std::int64_t>(steps) - 1;
    take_gradients(rank, *in_place);
    end();
  }
  if (request_.gradients) {  // the step was not applied, and its samples are not those of the gradient
    for (const auto& local : local_) local->kept.values.clear();
    record_.samples.clear();
  }
  const auto most = request_.gradients ? kSkippedSteps : static_cast<std::size_t>(request_.steps);
  if (steps >= most || report.stop_signal != 0) end();
  const auto spent = std::chrono::steady_clock::now() - began_;
  if (rank.is_main() && spent > std::chrono::duration<double>(request_.seconds)) process_stop_signal = SIGTERM;
}

void Inspection::loop_ends() {
  if (!record_.ended) end();
}

// What comes behind the loop (saving the model, say) is not run.
void Inspection::end() {
  for (const auto& item : model_->named_buffers()) {
    auto seen = outline(item.key(), item.value(), false);
    seen.digest = digest_of(item.value());
    record_.buffers_at_end.push_back(std::move(seen));
  }
  record_.ended = true;
  write();
  process_stop_signal = SIGTERM;  // for a program that catches what is thrown here
  throw InspectionOver();
}

// It appears whole or not at all.
void Inspection::write() noexcept {
  if (written_) return;
  written_ = true;
  try {
    const auto path = request_.folder + "/rank" + std::to_string(record_.rank) + ".json";
    std::ofstream out(path + ".part");
    if (out << record_.to_json() << std::flush) (void)std::rename((path + ".part").c_str(), path.c_str());
  } catch (const std::exception&) {
  }
}

std::function<void(Rank&)> inspected_if_asked(const std::function<void(Rank&)>& body, Config& config) {
  const auto request = inspection_request();
  if (!request) return body;
  const auto put_aside = make_harmless(config, *request);
  return [body, request = *request, put_aside](Rank& rank) {
    rank.show_loop_to(std::make_shared<Inspection>(rank, request, put_aside));
    try {
      body(rank);
    } catch (const InspectionOver&) {
    }
  };
}

}  // namespace troupe
