#include "strategies/mesh/pipeline_schedule.hpp"

#include <algorithm>
#include <deque>
#include <optional>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/nearest_name.hpp"
#include "tensor_io/base/registry.hpp"

namespace troupe {
namespace {

using Kind = StageInstruction::Kind;

Error refused(const std::string& cause, const std::string& remedy = {}) {
  return Error(ErrorCode::usage, "pipeline_schedule", cause, remedy);
}

void require_one_chunk(const char* name, const PipelineShape& shape) {
  if (shape.chunks != 1)
    throw refused(std::string(name) + " has one stage on each rank, pipeline_chunks is " + std::to_string(shape.chunks),
                  "set it to 1, or pipeline_schedule to interleaved");
}

Registry<ScheduleFunction>& registry() {
  static Registry<ScheduleFunction> instance{
      {{"gpipe", "all forwards, then all backwards"}, gpipe_schedule},
      {{"1f1b", "one forward, one backward: fewer activations are held"}, one_f_one_b_schedule},
      {{"interleaved", "1f1b over pipeline_chunks stages on each rank"}, interleaved_schedule},
      {{"zero_bubble", "1f1b with the weights' gradients computed where others would wait (ZB-H1)"},
       zero_bubble_schedule},
  };
  return instance;
}

/// A step of a schedule: who is how far, and what is done.
class Progress {
 public:
  explicit Progress(const PipelineShape& shape)
      : shape_(shape), stages_(shape.ranks * shape.chunks), forward_(cells(), -1), backward_(cells(), -1) {}

  int stage(int rank, const StageInstruction& instruction) const { return instruction.chunk * shape_.ranks + rank; }

  /// When what it waits for is there; nothing: that has not been done yet.
  std::optional<double> ready(int rank, const StageInstruction& instruction) const {
    const int at = stage(rank, instruction);
    double when = 0;
    if (instruction.kind == Kind::forward) {
      if (at > 0) when = forward_[cell(at - 1, instruction.micro_batch)];
    } else if (instruction.kind != Kind::backward_weight) {
      if (at + 1 < stages_) when = backward_[cell(at + 1, instruction.micro_batch)];
    }
    return when < 0 ? std::nullopt : std::optional(when);
  }
  void done(int rank, const StageInstruction& instruction, double when) {
    const int at = stage(rank, instruction);
    if (instruction.kind == Kind::forward) forward_[cell(at, instruction.micro_batch)] = when;
    if (instruction.kind == Kind::backward || instruction.kind == Kind::backward_input)
      backward_[cell(at, instruction.micro_batch)] = when;
  }

 private:
  std::size_t cells() const {
    return static_cast<std::size_t>(stages_) * static_cast<std::size_t>(shape_.micro_batches);
  }
  std::size_t cell(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(shape_.micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }
  PipelineShape shape_;
  int stages_;
  std::vector<double> forward_, backward_;  // when a stage's ended; -1: it has not
};

/// Runs all lists as far as they go. Returns each rank's next instruction.
template <class Done>
std::vector<std::size_t> run_lists(const std::vector<StageSchedule>& schedule, Progress& progress, Done&& done) {
  std::vector<std::size_t> next(schedule.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < schedule.size(); ++r) {
      for (; next[r] < schedule[r].size(); ++next[r], moved = true) {
        const auto& instruction = schedule[r][next[r]];
        const auto ready = progress.ready(static_cast<int>(r), instruction);
        if (!ready) break;
        progress.done(static_cast<int>(r), instruction, done(r, instruction, *ready));
      }
    }
  }
  return next;
}

// One rank's own list: everything once, in an order that can be.
void check_list(const StageSchedule& list, int rank, const PipelineShape& shape) {
  enum State { none, forwarded, input_done, done };
  std::vector<State> states(static_cast<std::size_t>(shape.chunks) * static_cast<std::size_t>(shape.micro_batches),
                            none);
  const auto where = "rank " + std::to_string(rank) + ": ";
  for (const auto& instruction : list) {
    if (instruction.chunk < 0 || instruction.chunk >= shape.chunks || instruction.micro_batch < 0 ||
        instruction.micro_batch >= shape.micro_batches) {
      throw refused(where + instruction.to_string() + ", of " + std::to_string(shape.micro_batches) +
                    " micro-batches and " + std::to_string(shape.chunks) + " chunks");
    }
    const auto chunk = static_cast<std::size_t>(instruction.chunk),
               micro_batch = static_cast<std::size_t>(instruction.micro_batch);
    auto& state = states[chunk * static_cast<std::size_t>(shape.micro_batches) + micro_batch];
    const bool fits = instruction.kind == Kind::forward           ? state == none
                      : instruction.kind == Kind::backward_weight ? state == input_done
                                                                  : state == forwarded;
    if (!fits) throw refused(where + instruction.to_string() + " comes twice or out of order");
    state = instruction.kind == Kind::forward          ? forwarded
            : instruction.kind == Kind::backward_input ? input_done
                                                       : done;
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i] == done) continue;
    const auto per_chunk = static_cast<std::size_t>(shape.micro_batches);
    throw refused(where + "micro-batch " + std::to_string(i % per_chunk) + " of chunk " +
                  std::to_string(i / per_chunk) +
                  (states[i] == none ? " has no forward" : " is not through its backward"));
  }
}

/// Forwards to begin with, then forwards and backwards in turn.
std::vector<StageSchedule> alternating_schedule(const PipelineShape& shape) {
  const int ranks = shape.ranks, chunks = shape.chunks;
  const int all = shape.micro_batches * chunks, group = ranks * chunks;
  // The k-th forward: groups of micro-batches, in each all chunks in turn.
  const auto at = [&](Kind kind, int k) {
    const int chunk = k % group / ranks;
    return StageInstruction{kind, k / group * ranks + k % ranks, kind == Kind::forward ? chunk : chunks - 1 - chunk};
  };
  std::vector<StageSchedule> lists;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& list = lists.emplace_back();
    const int warm_up =
        chunks == 1 ? std::min(all, ranks - 1 - rank) : std::min(all, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks);
    int forward = 0, backward = 0;
    while (forward < warm_up) list.push_back(at(Kind::forward, forward++));
    while (forward < all) {
      list.push_back(at(Kind::forward, forward++));
      list.push_back(at(Kind::backward, backward++));
    }
    while (backward < all) list.push_back(at(Kind::backward, backward++));
  }
  return lists;
}

}  // namespace

std::string StageInstruction::to_string() const {
  const char* name = kind == Kind::forward          ? "forward"
                     : kind == Kind::backward       ? "backward"
                     : kind == Kind::backward_input ? "backward (input)"
                                                    : "backward (weight)";
  return std::string(name) + " of micro-batch " + std::to_string(micro_batch) + ", chunk " + std::to_string(chunk);
}

std::vector<StageSchedule> gpipe_schedule(const PipelineShape& shape) {
  require_one_chunk("gpipe", shape);
  StageSchedule list;
  for (int m = 0; m < shape.micro_batches; ++m) list.push_back({Kind::forward, m, 0});
  for (int m = 0; m < shape.micro_batches; ++m) list.push_back({Kind::backward, m, 0});
  return std::vector<StageSchedule>(static_cast<std::size_t>(shape.ranks), list);
}

std::vector<StageSchedule> one_f_one_b_schedule(const PipelineShape& shape) {
  require_one_chunk("1f1b", shape);
  return alternating_schedule(shape);
}

std::vector<StageSchedule> interleaved_schedule(const PipelineShape& shape) {
  if (shape.micro_batches % shape.ranks != 0)
    throw refused("interleaved takes the micro-batches in groups of " + std::to_string(shape.ranks) +
                      " (the ranks of a pipeline), and there are " + std::to_string(shape.micro_batches),
                  "set grad_accum_steps to a multiple");
  return alternating_schedule(shape);
}

std::vector<StageSchedule> zero_bubble_schedule(const PipelineShape& shape) {
  require_one_chunk("zero_bubble", shape);
  std::vector<StageSchedule> lists;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    auto& list = lists.emplace_back();
    const int warm_up = std::min(shape.micro_batches, shape.ranks - 1 - rank);
    int forward = 0, input = 0, weight = 0;
    while (forward < warm_up) list.push_back({Kind::forward, forward++, 0});
    while (input < shape.micro_batches) {
      if (forward < shape.micro_batches) list.push_back({Kind::forward, forward++, 0});
      list.push_back({Kind::backward_input, input++, 0});
      // Rank r owes the weights' part of r micro-batches: as many as the last ranks have to wait for at the end.
      if (input > rank) list.push_back({Kind::backward_weight, weight++, 0});
    }
    while (weight < shape.micro_batches) list.push_back({Kind::backward_weight, weight++, 0});
  }
  return lists;
}

void check_schedule(const std::vector<StageSchedule>& schedule, const PipelineShape& shape) {
  if (static_cast<int>(schedule.size()) != shape.ranks)
    throw refused("there are lists for " + std::to_string(schedule.size()) + " ranks, of " +
                  std::to_string(shape.ranks));
  for (std::size_t r = 0; r < schedule.size(); ++r) check_list(schedule[r], static_cast<int>(r), shape);
  Progress progress(shape);
  const auto next = run_lists(schedule, progress, [](std::size_t, const StageInstruction&, double) { return 0.0; });
  std::string waiting;
  for (std::size_t r = 0; r < schedule.size(); ++r) {
    if (next[r] == schedule[r].size()) continue;
    waiting +=
        (waiting.empty() ? "rank " : "; rank ") + std::to_string(r) + " in its " + schedule[r][next[r]].to_string();
  }
  if (!waiting.empty()) throw refused("ranks wait for each other for ever: " + waiting);
}

double ScheduleRun::bubble() const {
  double idle = 0;
  for (const auto time : busy) idle += makespan - time;
  return idle / (makespan * static_cast<double>(busy.size()));
}

ScheduleRun run_on_virtual_time(const std::vector<StageSchedule>& schedule, const PipelineShape& shape,
                                const StageCosts& costs) {
  ScheduleRun run;
  run.busy.assign(schedule.size(), 0);
  run.held.assign(schedule.size(), 0);
  std::vector<double> free(schedule.size(), 0);
  std::vector<int> held(schedule.size(), 0);
  Progress progress(shape);
  run_lists(schedule, progress, [&](std::size_t r, const StageInstruction& instruction, double ready) {
    double cost = costs.forward;
    if (instruction.kind == Kind::backward) cost = costs.backward_input + costs.backward_weight;
    if (instruction.kind == Kind::backward_input) cost = costs.backward_input;
    if (instruction.kind == Kind::backward_weight) cost = costs.backward_weight;
    cost /= shape.chunks;  // a rank's part of the model is as large, whatever it is cut into
    if (instruction.kind == Kind::forward) run.held[r] = std::max(run.held[r], ++held[r]);
    if (instruction.kind == Kind::backward || instruction.kind == Kind::backward_input) --held[r];
    free[r] = std::max(free[r], ready) + cost;
    run.busy[r] += cost;
    run.makespan = std::max(run.makespan, free[r]);
    return free[r];
  });
  return run;
}

double bubble_formula(const std::string& name, const PipelineShape& shape, const StageCosts& costs) {
  const double wait = shape.ranks - 1, m = shape.micro_batches;
  if (name == "gpipe" || name == "1f1b") return wait / (m + wait);
  if (name == "interleaved") return wait / (shape.chunks * m + wait);
  if (name == "zero_bubble") {
    const double each = costs.forward + costs.backward_input - costs.backward_weight;
    return wait * each / (m * (costs.forward + costs.backward_input + costs.backward_weight) + wait * each);
  }
  throw refused("no formula is known for '" + name + "'", "known: gpipe, 1f1b, interleaved, zero_bubble");
}

void register_schedule(const std::string& name, const std::string& description, ScheduleFunction schedule) {
  registry().add(name, description, std::move(schedule));
}

std::vector<StageSchedule> make_schedule(const std::string& name, const PipelineShape& shape) {
  const auto schedule = registry().find(name);
  if (!schedule) throw refused("there is no schedule '" + name + "'", remedy_for_name(name, registry().sorted_names()));
  auto lists = (*schedule)(shape);
  check_schedule(lists, shape);
  return lists;
}

std::vector<RegisteredName> known_schedules() { return registry().sorted_names(); }

std::map<std::string, std::string> schedules() {
  std::map<std::string, std::string> known;
  for (const auto& [name, description] : registry().names()) known[name] = description;
  return known;
}

RankSchedule::RankSchedule(const std::string& name, const PipelineShape& shape, int rank) {
  const auto all = make_schedule(name, shape);
  instructions = all.at(static_cast<std::size_t>(rank));
  bubble = run_on_virtual_time(all, shape).bubble();
}

std::vector<std::pair<std::string, double>> RankSchedule::figures() const {
  if (instructions.empty()) return {};
  return {{"bubble", bubble}};
}

}  // namespace troupe
