#include "launch/run_checkpoints.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "actors/checkpointer.hpp"
#include "strategies/model_sync.hpp"
#include "tensor_io/checkpoint_reader.hpp"
#include "tensor_io/fault_point.hpp"
#include "tensor_io/rank_state.hpp"
#include "tensor_io/state_matching.hpp"

namespace troupe {
namespace {

// Counters of a rank's state.
constexpr const char* kLossScale = "loss_scale";
constexpr const char* kLossScaleTracker = "loss_scale_growth_tracker";

}  // namespace

RunCheckpoints::RunCheckpoints(Rank& rank, torch::nn::Module& model, Optimizer& optimizer)
    : rank_(rank), model_(model), optimizer_(optimizer) {}

// Rank 0 has it; another rank may become rank 0 when the job shrinks.
void RunCheckpoints::start_checkpointer() {
  if (checkpointer_) return;
  CheckpointerOptions options;
  options.directory = rank_.config().checkpoint_dir;
  options.keep_last = rank_.config().keep_last;
  options.rank = rank_.rank();
  options.supervisor = caf::actor_cast<caf::actor>(rank_.system().supervisor());
  checkpointer_ = caf::actor_cast<caf::actor>(rank_.system().system().spawn<caf::detached>(make_checkpointer, options));
}

RunCheckpoints::~RunCheckpoints() {
  if (!checkpointer_) return;
  caf::anon_send_exit(checkpointer_, caf::exit_reason::user_shutdown);
  rank_.system().compute().mailbox().wait_for(checkpointer_);
}

RunCheckpoints::Position RunCheckpoints::resume(const std::string& selector, const std::function<void(const std::string&)>& log) {
  auto& compute = rank_.system().compute();
  // Rank 0 reads; what it finds, or why it can't, goes to all, so that nobody waits for a rank that has thrown.
  TrainingState state;
  nlohmann::json header;
  if (rank_.is_main()) {
    try {
      auto loaded = load_checkpoint(rank_.config().checkpoint_dir, selector);
      for (const auto& refused : loaded.refused) log("refused " + refused.path + ": " + refused.reason);
      log("resume from " + loaded.path + ", step " + std::to_string(loaded.state.step));
      state = std::move(loaded.state);
      header = {{"step", state.step}, {"epoch", state.epoch}, {"step_in_epoch", state.step_in_epoch}, {"metadata", state.metadata}};
      if (!state.rank_state.empty()) header["counters"] = RankState::from_json(state.rank_state.front(), "a rank's state").counters;
    } catch (const Error& error) {
      header = {{"error", error.what()}, {"code", static_cast<int>(error.code())}};
    }
  }
  header = nlohmann::json::parse(compute.program_lane().broadcast_bytes(header.dump(), 0, "checkpoint"));
  if (header.contains("error"))
    throw Error(static_cast<ErrorCode>(header["code"].get<int>()), "resume", header["error"].get<std::string>());
  const auto metadata = header["metadata"].get<std::map<std::string, std::string>>();

  if (!compute.strategy().load_whole_state(state.tensors, optimizer_)) load_replicated(state);
  compute.strategy().load_state(metadata);
  compute.set_steps_done(header["step"].get<std::int64_t>());
  const auto counters = header.value("counters", std::map<std::string, double>{});
  if (const auto scale = counters.find(kLossScale); scale != counters.end() && counters.contains(kLossScaleTracker)) {
    compute.loss_scaler().load(scale->second, static_cast<std::int64_t>(counters.at(kLossScaleTracker)));
  }
  const auto best = metadata.find("best");
  return {header["epoch"].get<std::int64_t>(), header["step_in_epoch"].get<std::int64_t>(),
          best == metadata.end() ? -1.0 : std::stod(best->second)};
}

// Every rank gets all of it.
void RunCheckpoints::load_replicated(const TrainingState& state) {
  auto& compute = rank_.system().compute();
  std::string problem;
  if (rank_.is_main()) {
    try {
      // An optimizer that keeps no state before its first step gets its names from the file.
      const auto model_state = with_prefix(state.tensors, "model.");
      NamedTensors live;
      for (const auto& item : model_.named_parameters()) live.emplace_back("model." + item.key(), item.value().detach());
      for (const auto& item : model_.named_buffers()) live.emplace_back("model." + item.key(), item.value());
      copy_state(model_state, live, "loading the model");
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  problem = compute.program_lane().broadcast_bytes(problem, 0, "checkpoint");
  if (!problem.empty()) throw Error(ErrorCode::mismatch, "resume", problem);
  compute.strategy().broadcast_model();

  // The optimizer's tensors: names and shapes first, then the values.
  nlohmann::json shapes = nlohmann::json::array();
  for (const auto& [name, tensor] : with_prefix(state.tensors, "optimizer.")) {
    shapes.push_back({{"name", name.substr(std::string("optimizer.").size())},
                      {"shape", tensor.sizes().vec()},
                      {"dtype", static_cast<int>(tensor.scalar_type())}});
  }
  shapes = nlohmann::json::parse(compute.program_lane().broadcast_bytes(shapes.dump(), 0, "checkpoint"));
  NamedTensors moments;
  for (const auto& entry : shapes) {
    const auto name = entry["name"].get<std::string>();
    at::Tensor value;
    if (rank_.is_main()) {
      for (const auto& [saved, tensor] : state.tensors) {
        if (saved == "optimizer." + name) value = tensor.contiguous();
      }
    } else {
      value = at::empty(entry["shape"].get<std::vector<std::int64_t>>(),
                        at::TensorOptions().dtype(static_cast<at::ScalarType>(entry["dtype"].get<int>())));
    }
    moments.emplace_back(name, value);
  }
  broadcast_tensors(moments, compute.program_lane(), "optimizer state");
  optimizer_.load_state(moments);
}

std::string RunCheckpoints::own_state(const Position& position) const {
  RankState mine;
  mine.epoch = position.epoch;
  mine.step_in_epoch = position.step_in_epoch;
  const auto random = at::detail::getDefaultCPUGenerator().get_state();
  mine.rng.assign(random.data_ptr<std::uint8_t>(), random.data_ptr<std::uint8_t>() + random.numel());
  if (const auto& scaler = rank_.system().compute().loss_scaler(); scaler.enabled()) {
    mine.counters[kLossScale] = scaler.scale();
    mine.counters[kLossScaleTracker] = static_cast<double>(scaler.growth_tracker());
  }
  return mine.to_json();
}

void RunCheckpoints::save(const Position& position, bool best) {
  if (rank_.config().save_every < 0) return;
  auto rank_states = rank_.system().compute().program_lane().gather_bytes(own_state(position), 0, "checkpoint");
  auto tensors = rank_.system().compute().strategy().whole_state(optimizer_);
  if (rank_.is_main()) send(position, best, std::move(tensors), std::move(rank_states));
  fault_point("save", rank_.system().compute().steps_done());
}

void RunCheckpoints::save_alone(const Position& position) {
  auto& strategy = rank_.system().compute().strategy();
  if (rank_.config().save_every < 0) return;
  if (strategy.shards_state()) {
    std::fprintf(stderr, "warning: step %lld is not saved: the other ranks' shards are out of reach\n",
                 static_cast<long long>(rank_.system().compute().steps_done()));
    return;
  }
  send(position, false, strategy.whole_state(optimizer_),
       std::vector<std::string>(static_cast<std::size_t>(rank_.world_size()), own_state(position)));
  while (!await(std::chrono::seconds(60))) {
  }
}

void RunCheckpoints::send(const Position& position, bool best, NamedTensors tensors, std::vector<std::string> rank_states) {
  auto& compute = rank_.system().compute();
  start_checkpointer();
  while (!await(std::chrono::seconds(60))) {
  }
  auto state = std::make_shared<TrainingState>();
  state->step = compute.steps_done();
  state->epoch = position.epoch;
  state->step_in_epoch = position.step_in_epoch;
  const bool are_own = std::all_of(tensors.begin(), tensors.end(), [](const auto& named) {
    return named.second.use_count() == 1 && named.second.storage().use_count() == 1;  // gathered for this save
  });
  state->tensors = are_own ? std::move(tensors) : snapshot_.take(tensors);
  state->metadata = compute.strategy().state();
  state->metadata["config"] = config_to_json(rank_.config());
  state->metadata["strategy"] = compute.strategy().name();
  state->metadata["optimizer"] = optimizer_.name();
  state->metadata["world_size"] = std::to_string(rank_.world_size());
  state->metadata["job"] = rank_.system().options().job_id;
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", position.best);
  state->metadata["best"] = text;
  state->rank_state = std::move(rank_states);
  compute.mailbox().send(checkpointer_, SaveCheckpoint{std::move(state), best});
  under_way_ = true;
}

bool RunCheckpoints::await(std::chrono::milliseconds patience) {
  if (!under_way_) return true;
  rank_.system().compute().mailbox().receive(
      [&](CheckpointSaved& saved) {
        last_path_ = saved.path;
        under_way_ = false;
      },
      [&](CheckpointFailed& failed) {
        under_way_ = false;
        failure_ = failed.report;
        std::fprintf(stderr, "warning: the checkpoint of step %lld was not saved: %s\n", static_cast<long long>(failed.step),
                     failed.report.to_string().c_str());
      },
      caf::after(patience) >> [] {});
  return !under_way_;
}

std::string RunCheckpoints::finish() {
  // The others ask again and again instead of waiting in one collective for as long as a disk takes.
  for (;;) {
    const bool done = !rank_.is_main() || await(std::chrono::seconds(2));
    const auto answer = rank_.system().compute().program_lane().broadcast_bytes(done ? "saved" : "", 0, "last checkpoint");
    if (answer == "saved") return last_path_;
  }
}

}  // namespace troupe
