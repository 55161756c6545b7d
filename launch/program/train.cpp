#include <string>
#include <utility>
#include <vector>

#include "launch/program/job.hpp"

namespace troupe {
namespace {

// LibTorch's message for shapes that don't fit names neither the model nor the batch.
Error first_batch_error(const c10::Error& error, const std::string& model, const Dataset& data, const Batch& batch) {
  std::string fields;
  for (const auto& [name, tensor] : batch.fields())
    fields += (fields.empty() ? "" : ", ") + name + " " + c10::str(tensor.sizes());
  return {ErrorCode::user, "the first batch", error.what_without_backtrace(),
          "check that " + model + " takes what the data set gives (" + data.name() + ": " + fields + ")"};
}

void run_steps(Rank& rank, const std::shared_ptr<const Dataset>& data, const torch::nn::Module& model,
               Optimizer& optimizer, const std::function<Loss(const Batch&)>& loss_of, const TrainingWatch& watch) {
  std::vector<std::shared_ptr<const Batch>> of_step;  // where the strategy runs them all at once
  auto batches = rank.loader(data);
  while (const auto batch = batches.next()) {
    try {
      if (!rank.orders_micro_batches()) {
        rank.backward(loss_of(*batch));
      } else {
        if (batch->micro_batch == 0) of_step.clear();
        of_step.push_back(batch);
        if (batch->last_of_step) rank.run_micro_batches(std::exchange(of_step, {}), loss_of);
      }
    } catch (const Error& error) {  // a collective in forward or backward
      rank.recover(error);
      continue;
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      if (rank.steps_done() > 0) throw;
      throw first_batch_error(error, model.name(), *data, *batch);
    }
    if (!batch->last_of_step) continue;
    const auto report = rank.step(optimizer);
    if (watch.step) watch.step(rank, report);
  }
}

}  // namespace

void check_parts(const Job& job) {
  if (job.optimizer && job.groups)
    throw Error(ErrorCode::usage, "groups", "the job has an optimizer, which makes groups itself",
                "leave job.groups or job.optimizer out");
  const char* missing = !job.model ? "model" : !job.data ? "data" : !job.loss ? "loss" : nullptr;
  if (missing == nullptr) return;
  const std::string part = missing;
  throw Error(ErrorCode::usage, part, "the job has no " + part, "set job." + part + ", as examples/hello_troupe does");
}

void train(const Job& job, Rank& rank, const TrainingWatch& watch) try {
  check_parts(job);
  const auto& config = rank.config();
  rank.claim_checkpoints();
  rank.show_progress();
  const auto model = rank.distribute([&] { return job.model(config); });
  const auto optimizer = job.optimizer
                             ? job.optimizer(*model, config)
                             : rank.make_optimizer(*model, job.groups ? job.groups(config) : ParameterRules());
  if (job.schedule) {
    rank.schedule([&](std::int64_t step, std::int64_t total_steps) { return job.schedule(step, total_steps, config); });
  }
  const auto data = job.data(config);
  const auto loss_of = [&](const Batch& batch) {
    const auto autocast = rank.autocast();
    return job.loss(*model, batch, config);
  };
  if (job.callbacks) rank.set_callbacks(job.callbacks(rank, *model));
  rank.keep_checkpoints(*optimizer);
  if (data.held_out) rank.validate_on(data.held_out, loss_of);
  run_steps(rank, data.train, *model, *optimizer, loss_of, watch);
  if (watch.end) watch.end(rank, *optimizer);
  rank.end_trace();
  rank.end_loop({});
} catch (const std::exception& error) {  // model and optimizer are gone
  rank.end_loop(error.what());
  throw;
}

int run(const Job& job, int argc, char** argv) {
  return troupe::main(
      argc, argv, [&](Rank& rank) { train(job, rank); }, job.declare);
}

}  // namespace troupe
