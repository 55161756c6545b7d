// Parameters with a rate and a weight decay of their own, by config and by code.
#include <cmath>
#include <functional>
#include <map>

#include "actors/block/block.hpp"
#include "launch/model/parameter_rules.hpp"
#include "launch/process/formatted.hpp"
#include "launch/program/job_of.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tests/catch.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/judged_net.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using Catch::Contains;

namespace {

struct RmsNormImpl : torch::nn::Module {
  at::Tensor scale = register_parameter("scale", torch::ones({4}));
  at::Tensor forward(const at::Tensor& x) { return x * scale; }
};
TROUPE_BLOCK(RmsNorm);

// One of each kind, a tied weight and a frozen one.
struct KindsImpl : torch::nn::Module {
  KindsImpl() {
    register_module("words", torch::nn::Embedding(5, 4));
    register_module("layer", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    register_module("batch", torch::nn::BatchNorm2d(4));
    register_module("ours", nn::BatchNorm1d(4));
    register_module("group", torch::nn::GroupNorm(2, 4));
    register_module("own", RmsNorm());
    register_module("linear", torch::nn::Linear(4, 5));
    auto frozen = register_module("frozen", torch::nn::Linear(4, 4));
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
    register_parameter("tied", named_parameters()["words.weight"]);
    register_parameter("bias", torch::zeros({2, 2}));  // no bias: of two dimensions
  }
};

// "words.weight bias | x0.5 d0 linear.bias": the groups' parameters, and what is their own.
std::string groups_text(const torch::nn::Module& model, const std::string& no_decay, const ParameterRules& rules = {}) {
  OptimizerOptions options;
  options.no_decay = no_decay;
  std::string text;
  for (const auto& group : parameter_groups(model, options, rules)) {
    if (!text.empty()) text += " | ";
    std::string words;
    if (group.lr_scale != 1) words += formatted("x%g ", group.lr_scale);
    if (group.weight_decay >= 0) words += formatted("d%g ", group.weight_decay);
    for (const auto& [name, parameter] : group.parameters) words += name + " ";
    if (words.ends_with(' ')) words.pop_back();
    text += words;
  }
  return text;
}

std::string refusal_of(const torch::nn::Module& model, const std::string& no_decay, const ParameterRules& rules = {}) {
  return testing::error_of(ErrorCode::usage, [&] { groups_text(model, no_decay, rules); });
}

struct GroupedCellImpl : torch::nn::Module {
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({15})));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(15, 15));
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(linear(norm(x))); }
};
TROUPE_BLOCK(GroupedCell);

struct GroupedNetImpl : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(6, 15));
  GroupedCell a = register_module("a", GroupedCell()), b = register_module("b", GroupedCell());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(15, 2));
  at::Tensor forward(const at::Tensor& x) { return head(b(a(in(x)))); }
};
TORCH_MODULE(GroupedNet);

std::pair<at::Tensor, at::Tensor> grouped_samples() { return testing::parted_samples(3, 64, 6); }

JobOf<GroupedNet> grouped_job() {
  return {.data = Datasets{testing::parted_data(3, 64, 6), nullptr}, .loss = [](GroupedNet& net, const Batch& batch) {
            return Loss(torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target));
          }};
}

Config grouped_config(const std::string& optimizer) {
  Config config;
  config.optimizer = optimizer;
  config.weight_decay = 0.3;
  config.shuffle = false;
  config.batch_size = 16;
  config.epochs = 2;
  config.lr = 0.1;
  config.run_dir = "";
  config.sync_every = 2;
  return config;
}

void set_strategy(Config& config, const std::string& strategy) {
  config.strategy = strategy.substr(0, strategy.find(' '));
  config.early_update = strategy.ends_with(" early");
  if (config.strategy == "fsdp" && !config.early_update && strategy.find(' ') != std::string::npos)
    config.fsdp_mode = strategy.substr(strategy.find(' ') + 1);
  config.staleness = 0;
  if (config.strategy == "pipeline") config.grad_accum_steps = 2;
}

NamedTensors train_grouped(Config config, int ranks, const JobOf<GroupedNet>& job, std::string* errors = nullptr,
                           const std::string& folder = {}) {
  testing::ScratchDirectory scratch;
  config.ranks = ranks;
  config.checkpoint_dir = folder.empty() ? scratch.path() : folder;
  std::string all;
  for (const auto& error : testing::run_program(ranks, config, [&](Rank& rank) { train(Job(job), rank); }))
    all += error;
  if (errors != nullptr) {
    *errors = all;
    return {};
  }
  CHECK(all == "");
  return all.empty() ? load_checkpoint(config.checkpoint_dir, "latest").state.tensors : NamedTensors();
}

// The same steps by LibTorch alone, in two groups: {parameters of the second group, its rate, its decay}.
template <class Optimizer, class Options>
NamedTensors train_by_libtorch(const Config& config, Options options,
                               const std::function<bool(const std::string&)>& in_second, double rate, double decay) {
  const auto building = seed_model(config.seed);
  GroupedNet net;
  std::vector<at::Tensor> members[2];
  for (const auto& item : net->named_parameters()) members[in_second(item.key()) ? 1 : 0].push_back(item.value());
  auto second = options;
  second.lr(rate).weight_decay(decay);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(members[0], std::make_unique<Options>(options));
  groups.emplace_back(members[1], std::make_unique<Options>(second));
  Optimizer optimizer(groups, options);
  const auto [input, target] = grouped_samples();
  for (std::int64_t step = 0; step < config.epochs * 4; ++step) {
    const auto at = step % 4 * 16;
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(input.narrow(0, at, 16)), target.narrow(0, at, 16)).backward();
    optimizer.step();
  }
  NamedTensors state;
  for (const auto& item : net->named_parameters()) state.emplace_back("model." + item.key(), item.value().detach());
  return state;
}

double worst_difference(const NamedTensors& run, const NamedTensors& reference) {
  std::map<std::string, at::Tensor> known(run.begin(), run.end());
  double worst = reference.empty() ? 1e9 : 0;
  for (const auto& [name, tensor] : reference) {
    if (!known.contains(name)) return 1e9;
    worst = std::max(worst, (known[name].to(at::kDouble) - tensor.to(at::kDouble)).abs().max().item<double>());
  }
  return worst;
}

bool is_undecayed(const std::string& name) { return name.find("norm.") != std::string::npos || name.ends_with("bias"); }

constexpr double kRounding = 2e-5;

}  // namespace

TEST_CASE("[U04] no_decay names norms, biases and globs, and a tied parameter by any of its names") {
  const KindsImpl model;
  const std::string norms =
      "layer.weight layer.bias batch.weight batch.bias ours.weight ours.bias group.weight group.bias own.scale";
  CHECK(groups_text(model, "") == "tied bias " + norms + " linear.weight linear.bias");
  CHECK(groups_text(model, "norms") == "tied bias linear.weight linear.bias | d0 " + norms);
  CHECK(groups_text(model, "biases") ==
        "tied bias layer.weight batch.weight ours.weight group.weight own.scale linear.weight | d0 layer.bias "
        "batch.bias ours.bias group.bias linear.bias");
  CHECK(groups_text(model, " norms , biases") == "tied bias linear.weight | d0 " + norms + " linear.bias");
  CHECK(groups_text(model, "words.weight") == "bias " + norms + " linear.weight linear.bias | d0 tied");
  CHECK(groups_text(model, "*") == "d0 tied bias " + norms + " linear.weight linear.bias");
  CHECK(groups_text(model, "l*.bias,o?n.*,bias") ==
        "tied layer.weight batch.weight batch.bias ours.weight ours.bias group.weight group.bias linear.weight | d0 "
        "bias layer.bias own.scale linear.bias");
  CHECK(groups_text(torch::nn::LinearImpl(2, 2), "norms") == "weight bias");  // a word may fit nothing
  CHECK(groups_text(model, "frozen.*") == groups_text(model, ""));            // nor is what it fits trained
}

TEST_CASE("[U04] a rule gives a rate and a decay, the first that matches counts, and no_decay fills in") {
  const KindsImpl model;
  const ParameterMatch is_matrix([](const std::string&, const at::Tensor& parameter) { return parameter.dim() > 1; });
  CHECK(groups_text(model, "", {{is_matrix, 0.5}, {"*", 1, 0.25}}) ==
        "x0.5 tied bias linear.weight | d0.25 layer.weight layer.bias batch.weight batch.bias ours.weight ours.bias "
        "group.weight group.bias own.scale linear.bias");
  CHECK(groups_text(model, "norms,words.*", {{.match = "words.*,own.*", .lr_scale = 2}}) ==
        "bias linear.weight linear.bias | x2 d0 tied own.scale | d0 layer.weight layer.bias batch.weight batch.bias "
        "ours.weight ours.bias group.weight group.bias");
  CHECK(groups_text(model, "words.weight", {{.match = "words.*", .weight_decay = 0.5}}).find("d0.5 tied") !=
        std::string::npos);
}

TEST_CASE("[U04] what fits no parameter is refused in a line with the nearest name, and so is a rate that is none") {
  const KindsImpl model;
  CHECK_THAT(refusal_of(model, "norms,lineer.bias"),
             Contains("no_decay: no parameter of the model fits 'lineer.bias'; did you mean linear.bias?"));
  CHECK_THAT(refusal_of(model, "norm"), Contains("did you mean norms?"));
  CHECK_THAT(refusal_of(model, "bias.*"), Contains("no_decay: no parameter of the model fits 'bias.*'"));
  CHECK_THAT(refusal_of(model, "norms,,biases"), Contains("no_decay: one of its patterns is empty"));
  CHECK_THAT(refusal_of(model, "norms,"), Contains("one of its patterns is empty"));
  CHECK_THAT(refusal_of(model, "norms biases"), Contains("'norms biases' has a space in it"));
  CHECK_THAT(refusal_of(model, "", {{"*", 1}, {"head.*", 10}}),
             Contains("parameter group 2: no parameter of the model fits 'head.*'"));
  CHECK_THAT(refusal_of(model, "", {{ParameterMatch()}}), Contains("parameter group 1: it matches nothing"));
  CHECK_THAT(refusal_of(model, "", {{[](const std::string&, const at::Tensor&) { return false; }}}),
             Contains("parameter group 1: its function matches no parameter"));
  CHECK_THAT(refusal_of(model, "", {{"*", -1}}), Contains("lr_scale is -1"));
  CHECK_THAT(refusal_of(model, "", {{"*", 1, std::nan("")}}), Contains("weight_decay is nan"));
}

TEST_CASE("[U04] no_decay trains as torch::optim's groups do, on one rank and on two with every strategy") {
  const std::string optimizer = GENERATE("sgd", "adamw");
  const std::string strategy = GENERATE("ddp", "ddp early", "fsdp", "fsdp shard_grad_op", "fsdp no_shard", "zero1",
                                        "zero2", "parameter_server", "pipeline");
  INFO(optimizer << ' ' << strategy);
  auto config = grouped_config(optimizer);
  config.no_decay = "norms,biases";
  if (optimizer == "adamw") config.lr = 0.01;
  const auto reference =
      optimizer == "sgd"
          ? train_by_libtorch<torch::optim::SGD>(
                config, torch::optim::SGDOptions(config.lr).momentum(0.9).weight_decay(0.3), is_undecayed, config.lr, 0)
          : train_by_libtorch<torch::optim::AdamW>(config, torch::optim::AdamWOptions(config.lr).weight_decay(0.3),
                                                   is_undecayed, config.lr, 0);
  const auto alone = train_grouped(config, 1, grouped_job());
  CHECK(worst_difference(alone, reference) < kRounding);
  set_strategy(config, strategy);
  CHECK(worst_difference(train_grouped(config, 2, grouped_job()), reference) < kRounding);
  config.no_decay = "";
  CHECK(worst_difference(train_grouped(config, 2, grouped_job()), reference) > 1e-3);
}

TEST_CASE("[U04] a job's own groups train as torch::optim's do, on one rank and on two with every strategy") {
  const std::string strategy = GENERATE("ddp", "ddp early", "fsdp", "zero1", "zero2", "parameter_server", "pipeline");
  INFO(strategy);
  auto config = grouped_config("adamw");
  config.lr = 0.01;
  auto job = grouped_job();
  job.groups = ParameterRules{{.match = "head.*", .lr_scale = 3, .weight_decay = 0.7}};
  const auto reference = train_by_libtorch<torch::optim::AdamW>(
      config, torch::optim::AdamWOptions(config.lr).weight_decay(0.3),
      [](const std::string& name) { return name.starts_with("head."); }, 3 * config.lr, 0.7);
  CHECK(worst_difference(train_grouped(config, 1, job), reference) < kRounding);
  set_strategy(config, strategy);
  CHECK(worst_difference(train_grouped(config, 2, job), reference) < kRounding);
}

TEST_CASE("[U04] with strategies that average models, no_decay has the bits of groups that a program makes itself") {
  const std::string strategy = GENERATE("local_sgd", "diloco");
  auto config = grouped_config("adamw");
  set_strategy(config, strategy);
  auto job = grouped_job();
  job.optimizer = [](const GroupedNetImpl& net, const Config& given) {
    std::vector<ParameterGroup> groups(2);
    groups[1].weight_decay = 0;
    for (const auto& item : net.named_parameters())
      groups[is_undecayed(item.key()) ? 1 : 0].parameters.emplace_back(item.key(), item.value());
    return make_optimizer(given, groups);
  };
  const auto reference = train_grouped(config, 2, job);
  config.no_decay = "norms,biases";
  CHECK(worst_difference(train_grouped(config, 2, grouped_job()), reference) == 0);
}

TEST_CASE("[U04] a run goes on from a checkpoint with other groups, and the state's names stay") {
  auto config = grouped_config("adamw");
  config.lr = 0.01;
  set_strategy(config, GENERATE("ddp", "fsdp"));
  testing::ScratchDirectory folder;
  config.epochs = 1;
  const auto before = train_grouped(config, 2, grouped_job(), nullptr, folder.path());
  config.epochs = 2;
  config.resume = "latest";
  config.no_decay = "biases";
  const auto after = train_grouped(config, 2, grouped_job(), nullptr, folder.path());
  REQUIRE(before.size() == after.size());
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(before[i].first == after[i].first);
}

TEST_CASE("[U04] no_decay beside an optimizer that the program groups itself is refused, before the first step") {
  auto config = grouped_config("sgd");
  config.no_decay = "biases";
  auto job = grouped_job();
  std::string errors;
  SECTION("of the job") {
    job.optimizer = [](const GroupedNetImpl& net, const Config& given) {
      std::vector<ParameterGroup> groups(1);
      for (const auto& item : net.named_parameters()) groups[0].parameters.emplace_back(item.key(), item.value());
      return make_optimizer(given, groups);
    };
    train_grouped(config, 2, job, &errors);
    CHECK_THAT(errors, Contains("no_decay: it is 'biases', and this program groups the parameters of its sgd"));
  }
  SECTION("of torch::optim") {
    errors = testing::run_program(1, config, [](Rank& rank) {
      auto net = rank.distribute([] { return GroupedNet(); });
      (void)rank.make_optimizer(*net);
      torch::optim::Adam theirs(net->parameters());
      rank.step(theirs);
    })[0];
    CHECK_THAT(errors, Contains("no_decay: it is 'biases'") && Contains("its torch::optim optimizer itself"));
  }
  SECTION("and groups beside a job's optimizer") {
    config.no_decay = "";
    job.groups = ParameterRules{{"*.bias", 2}};
    job.optimizer = [](const GroupedNetImpl&) { return std::unique_ptr<Optimizer>(); };
    train_grouped(config, 1, job, &errors);
    CHECK_THAT(errors, Contains("groups: the job has an optimizer"));
  }
}
