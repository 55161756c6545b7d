#include "launch/loop/loop_trace.hpp"

#include <cstdio>
#include <exception>

namespace troupe {

LoopTrace::LoopTrace(const Config& config, const RankSystemOptions& options) {
  auto setting = profile_setting(config.profile);
  if (!setting.traces()) return;
  if (config.ranks > 1 && options.process.slot != 0) setting.operators = false;  // Kineto is one per process
  trace_ = std::make_unique<RankTrace>(
      RankTraceOptions{setting, config.run_dir, options.job_id, options.world_size, !options.device.is_cpu()});
}

RankSystemOptions LoopTrace::with_recorder(RankSystemOptions options) const {
  if (trace_) options.trace = trace_->recorder();
  return options;
}

void LoopTrace::set_model(const std::shared_ptr<torch::nn::Module>& model) {
  has_model_ = true;
  if (trace_) trace_->set_model(model);
}

void LoopTrace::update(std::int64_t steps_done) {
  if (trace_ && has_model_) trace_->update(steps_done);
}

void LoopTrace::write(Compute& compute, LoopRecords& records) {
  const auto line = trace_->gather(compute.program_communicator(), compute.membership());
  if (!line.empty()) records.report("trace", line);
}

bool LoopTrace::gather(Compute& compute, LoopRecords& records) {
  if (!trace_ || !trace_->due(compute.steps_done())) return false;
  write(compute, records);
  return true;
}

void LoopTrace::end(RankSystem& system, LoopRecords& records) {
  auto& compute = system.compute();
  if (!trace_ || !has_model_ || ended_ || !trace_->cut_off(compute.steps_done())) return;
  ended_ = true;
  try {
    write(compute, records);
  } catch (const Error& error) {  // not tried again: the training is over, and a newcomer would begin elsewhere
    if (!may_be_recovered(error.code())) throw;
    give_up(system);
  }
}

void LoopTrace::give_up(RankSystem& system) noexcept {
  const int rank = system.compute().rank();
  if (!trace_ || rank < 0) return;
  try {
    const auto line = trace_->write_alone(rank, system.options().host);
    if (!line.empty()) std::fprintf(stderr, "%s\n", line.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trace: what rank %d recorded is lost: %s\n", rank, error.what());
  }
}

}  // namespace troupe
