#include "launch/config/unread_settings.hpp"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "actors/step/loss_scaling.hpp"
#include "launch/process/displayable.hpp"
#include "strategies/switching/switch_plan.hpp"

namespace troupe {
namespace {

/// What decides who reads a setting.
class Choice {
 public:
  explicit Choice(const Config& of) : config(of) {
    std::vector<StrategyPhase> phases;
    if (!of.switch_at.empty()) parse_switches(of.switch_at, phases);
    phases.push_back({0, of.strategy, of.comm_hook});
    for (const auto& phase : phases) {
      strategies_.insert(phase.strategy);
      hooks_.insert(phase.hook);
    }
  }

  bool strategy(const std::set<std::string>& any) const {
    return std::any_of(strategies_.begin(), strategies_.end(), [&](const auto& name) { return any.contains(name); });
  }
  bool hook(const std::string& name) const { return hooks_.contains(name); }
  bool is_own() const {
    static const std::set<std::string> ours{
        "ddp", "zero1", "zero2", "fsdp", "local_sgd", "diloco", "parameter_server", "pipeline", "tensor_parallel"};
    static const std::set<std::string> hooks{"none", "fp16", "bf16", "powersgd"};
    const auto not_in = [](const auto& known) { return [&known](const auto& name) { return !known.contains(name); }; };
    return std::any_of(strategies_.begin(), strategies_.end(), not_in(ours)) ||
           std::any_of(hooks_.begin(), hooks_.end(), not_in(hooks));
  }
  bool stages() const { return strategy({"pipeline"}) || (meshes() && has_axis("pp")); }
  bool shared_layers() const { return strategy({"tensor_parallel"}) || (meshes() && has_axis("tp")); }
  bool shards_of_mesh() const { return meshes() && has_axis("fsdp"); }
  bool gathers() const { return strategy({"fsdp"}) || shards_of_mesh(); }
  bool shards() const { return strategy({"zero1", "zero2", "fsdp"}) || shards_of_mesh(); }

  const Config& config;

 private:
  bool meshes() const { return strategy({"pipeline", "tensor_parallel"}); }

  // The mesh names it, above 1. What is wrong with a mesh the strategy says, which knows the number of ranks.
  bool has_axis(const std::string& name) const {
    const auto text = "," + config.mesh + ",";
    return text.find("," + name + "=") != std::string::npos && text.find("," + name + "=1,") == std::string::npos;
  }

  std::set<std::string> strategies_, hooks_;
};

struct Rule {
  std::vector<std::string> settings, deciders;
  std::function<bool(const Choice&)> is_read;
  std::string why, remedy;
  bool of_strategy = true;  // one that is not ours may read it
};

const std::vector<Rule>& rules() {
  static const std::vector<std::string> kStrategy{"strategy", "switch_at", "mesh"};
  static const std::vector<Rule> all{
      {{"outer_lr", "outer_momentum", "diloco_fragments", "diloco_overlap", "diloco_mixing"},
       kStrategy,
       [](const Choice& c) { return c.strategy({"diloco"}); },
       "only diloco has an outer optimizer",
       "set strategy to diloco"},
      {{"sync_every"},
       kStrategy,
       [](const Choice& c) {
         return c.strategy({"local_sgd", "diloco"});
       },
       "only local_sgd and diloco train apart between two outer steps",
       "set strategy to local_sgd or diloco"},
      {{"staleness", "server_shares"},
       kStrategy,
       [](const Choice& c) { return c.strategy({"parameter_server"}); },
       "only parameter_server has a server",
       "set strategy to parameter_server"},
      {{"fsdp_shard_size"},
       {"strategy", "switch_at", "mesh", "fsdp_mode"},
       [](const Choice& c) { return c.gathers() && c.config.fsdp_mode == "hybrid_shard"; },
       "only fsdp's hybrid_shard has shards of fewer ranks than all",
       "set strategy to fsdp and fsdp_mode to hybrid_shard"},
      {{"fsdp_mode", "fsdp_wrap", "fsdp_prefetch", "fsdp_prefetch_mb"},
       kStrategy,
       [](const Choice& c) { return c.gathers(); },
       "only fsdp, or a mesh with fsdp above 1, gathers parameters",
       "set strategy to fsdp"},
      {{"fsdp_mapped", "fsdp_cpu_offload", "fsdp_sync_micro_batches"},
       kStrategy,
       [](const Choice& c) { return c.shards(); },
       "only zero1, zero2 and fsdp, or a mesh with fsdp above 1, shard",
       "set strategy to one of them"},
      {{"static_graph"},
       kStrategy,
       [](const Choice& c) { return c.strategy({"ddp"}) || c.shards(); },
       "only ddp and sharded strategies measure the order of gradients",
       "use it with ddp, zero1, zero2 or fsdp"},
      {{"pipeline_schedule", "pipeline_chunks", "pipeline_costs"},
       kStrategy,
       [](const Choice& c) { return c.stages(); },
       "only a pipeline, or a mesh with pp above 1, has stages",
       "set strategy to pipeline"},
      {{"tensor_plan", "sequence_parallel"},
       kStrategy,
       [](const Choice& c) { return c.shared_layers(); },
       "only tensor_parallel, or a mesh with tp above 1, shares layers",
       "set strategy to tensor_parallel"},
      {{"verify_every", "on_divergence"},
       kStrategy,
       [](const Choice& c) {
         return c.strategy({"ddp", "parameter_server"});
       },
       "only ddp and parameter_server compare replicas",
       "set strategy to ddp"},
      {{"on_divergence"},
       {"verify_every"},
       [](const Choice& c) { return c.config.verify_every > 0; },
       "with verify_every 0 no replicas are compared",
       "set verify_every above 0"},
      {{"lr_min"},
       {"schedule"},
       [](const Choice& c) { return c.config.schedule == "cosine"; },
       "only the schedule cosine ends at a rate",
       "set schedule to cosine",
       false},
      {{"lr_step_epochs", "lr_step_factor"},
       {"schedule"},
       [](const Choice& c) { return c.config.schedule == "step"; },
       "only the schedule step has steps",
       "set schedule to step",
       false},
      {{"powersgd_rank", "powersgd_start_step"},
       {"comm_hook", "switch_at"},
       [](const Choice& c) { return c.hook("powersgd"); },
       "only comm_hook powersgd has a rank",
       "set comm_hook to powersgd"},
      {{"amp_dtype"},
       {"use_amp"},
       [](const Choice& c) { return c.config.use_amp; },
       "without use_amp nothing is cast",
       "add --use_amp",
       false},
      {{"loss_scale_init", "loss_scale_growth", "loss_scale_interval", "loss_scale_backoff"},
       {"loss_scaler", "use_amp", "amp_dtype"},
       [](const Choice& c) { return scales_loss(c.config); },
       "no loss is scaled",
       "set loss_scaler to on, or use_amp with amp_dtype fp16",
       false},
      {{"init_rename", "init_allow_missing"},
       {"init_from"},
       [](const Choice& c) { return !c.config.init_from.empty(); },
       "no weights are loaded",
       "name a file with init_from",
       false},
      {{"mlflow_experiment"},
       {"mlflow_uri"},
       [](const Choice& c) { return !c.config.mlflow_uri.empty(); },
       "no MLflow server is named",
       "name one with mlflow_uri",
       false},
      {{"after_save_timeout"},
       {"after_save"},
       [](const Choice& c) { return !c.config.after_save.empty(); },
       "no command runs after a save",
       "name one with after_save",
       false},
  };
  return all;
}

// Of the optimizer that the settings name. A program's own may read any.
const std::vector<Rule>& optimizer_rules() {
  static const std::vector<Rule> all{
      {{"beta1", "beta2", "eps"},
       {"optimizer"},
       [](const Choice& c) { return c.config.optimizer != "sgd"; },
       "sgd does not read it",
       "set optimizer to adamw",
       false},
      {{"momentum", "nesterov"},
       {"optimizer"},
       [](const Choice& c) { return c.config.optimizer != "adamw"; },
       "adamw does not read it",
       "set optimizer to sgd",
       false},
  };
  return all;
}

std::vector<const Rule*> unread(const std::vector<Rule>& rules, const Config& config) {
  const Choice choice(config);
  std::vector<const Rule*> unread;
  for (const auto& rule : rules) {
    if (!rule.is_read(choice) && !(rule.of_strategy && choice.is_own())) unread.push_back(&rule);
  }
  return unread;
}

bool is_off(const std::string& text) { return text.empty() || text == "0" || text == "false"; }

// As parse_config ranks sources.
int strength(const std::string& source) {
  if (source.starts_with("--")) return 2;
  return source.starts_with("TROUPE_") ? 1 : 0;
}

// A flag decides otherwise than the file in which it stands. A variable is for all programs of a shell.
bool is_overridden(const Config& config, const std::string& source, const std::vector<std::string>& deciders) {
  if (strength(source) == 1) return true;
  return std::any_of(deciders.begin(), deciders.end(), [&](const auto& decider) {
    const auto given = config.sources.find(decider);
    return given != config.sources.end() && strength(given->second) > strength(source);
  });
}

void refuse(const std::vector<const Rule*>& unread, const Config& config) {
  const auto texts = config_texts(config);
  for (const auto* rule : unread) {
    for (const auto& setting : rule->settings) {
      const auto source = config.sources.find(setting);
      if (source == config.sources.end() || config.as_begun.contains(setting) || is_off(texts.at(setting))) continue;
      if (is_overridden(config, source->second, rule->deciders)) continue;
      throw Error(ErrorCode::usage, displayable(source->second), setting + " has no effect here: " + rule->why,
                  rule->remedy + ", or leave it out");
    }
  }
}

}  // namespace

std::set<std::string> unread_settings(const Config& config) {
  std::set<std::string> settings;
  for (const auto* all : {&rules(), &optimizer_rules()}) {
    for (const auto* rule : unread(*all, config)) settings.insert(rule->settings.begin(), rule->settings.end());
  }
  return settings;
}

void refuse_unread(const Config& config) { refuse(unread(rules(), config), config); }

void refuse_unread_by_optimizer(const Config& config) { refuse(unread(optimizer_rules(), config), config); }

}  // namespace troupe
