#include "launch/compiled/compiled_job.hpp"

#include <memory>
#include <utility>

#include "launch/compiled/compiled_calls.hpp"
#include "launch/compiled/compiled_manifest.hpp"
#include "launch/compiled/compiled_model.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/data/dataset_registry.hpp"
#include "tensor_io/layers/dropout.hpp"

namespace troupe {
namespace {

void refuse_if(bool wrong, const std::string& setting, const std::string& cause, const std::string& remedy) {
  if (wrong) throw Error(ErrorCode::usage, setting, cause, remedy);
}

// What was decided when the model was compiled, against what the config asks for.
void check_settings(const Config& config, const CompiledModel& model) {
  const auto& m = model.manifest();
  const std::string amp_dtype = config.amp_dtype == "bf16" ? "bfloat16" : "float16";
  refuse_if(config.device.starts_with("cuda"), "device", "the model is compiled for the CPU", "--device cpu");
  refuse_if(config.use_amp && m.autocast != amp_dtype, "use_amp",
            m.autocast.empty() ? "the model is compiled without autocast"
                               : "the model is compiled with autocast in " + m.autocast + ", not " + amp_dtype,
            "compile it with --autocast " + amp_dtype);
  refuse_if(!config.use_amp && !m.autocast.empty(), "use_amp", "the model is compiled with autocast in " + m.autocast,
            "--use_amp, or compile it without --autocast");
  refuse_if(config.param_dtype != StrategyOptions().param_dtype, "param_dtype",
            "the parameters' dtypes are compiled in",
            "compile the model with --autocast bfloat16, or in another dtype");
  refuse_if(config.label_smoothing != 0, "label_smoothing", "the loss is compiled in",
            "leave it out, or put it into the loss before you compile");
  refuse_if(config.sync_batchnorm, "sync_batchnorm",
            "a compiled model's BatchNorm takes statistics of its own rank's samples only",
            "leave it out, or use GroupNorm");
  const auto uses = [&](const std::string& part) { return config.strategy.find(part) != std::string::npos; };
  refuse_if(uses("tensor_parallel"), "strategy", "a compiled model's layers cannot be split over ranks",
            "use fsdp, or a mesh without tp");
  refuse_if(uses("pipeline") && !m.no_pipeline.empty(), "strategy",
            "no pipeline can cut the model between its blocks: " + m.no_pipeline, "use fsdp");
  refuse_if(uses("pipeline") && m.blocks.empty(), "strategy", "the model is compiled as one block",
            "name its blocks: troupe compile --blocks CLASS");
}

std::shared_ptr<torch::nn::Module> make_model(const Config& config) {
  const auto path = config.get<std::string>("model");
  refuse_if(path.empty(), "model", "no compiled model is named", "give --model FILE, a file that troupe compile wrote");
  auto model = std::make_shared<CompiledModel>(path);
  check_settings(config, *model);
  return model;
}

}  // namespace

Job compiled_job() {
  Job job;
  job.declare = [](Config& config) {
    config.declare("model", std::string(), "the compiled model: a file that `troupe compile` wrote");
  };
  job.model = make_model;
  job.data = [](const Config& config) {
    auto [train, held_out] = make_datasets(config, config.seed);
    return Datasets{train, held_out};
  };
  job.loss = [](torch::nn::Module& model, const Batch& batch, const Config&) {
    return dynamic_cast<CompiledModel&>(model).loss(batch);
  };
  return job;
}

void write_gradients(const std::string& path, const std::string& batch_path, const std::string& out) {
  const auto shared = std::make_shared<CompiledModel>(path);
  auto& model = *shared;
  Batch batch;
  batch.set_fields(load_safetensors(batch_path));
  const auto position = std::make_shared<ForwardPosition>();
  place_dropout(model, position);
  std::vector<at::Tensor> masks;
  const auto loss = [&] {
    const CompiledMasks recording(masks);
    return model.loss(batch);
  }();
  loss.value.backward();
  NamedTensors results{{"loss", loss.value.detach()}};
  if (loss.elements) results.emplace_back("count", at::tensor(*loss.elements));
  results.emplace_back("correct", at::tensor(loss.correct.value(), at::kDouble));
  for (const auto& item : model.named_parameters()) {
    if (item.value().grad().defined()) results.emplace_back("gradient:" + item.key(), item.value().grad().contiguous());
  }
  for (const auto& item : model.named_buffers()) results.emplace_back("buffer:" + item.key(), item.value().clone());
  for (std::size_t i = 0; i < masks.size(); ++i) results.emplace_back("mask:" + std::to_string(i), masks[i]);
  model.eval();
  const at::NoGradGuard no_grad;
  results.emplace_back("eval", model.loss(batch).value);
  save_safetensors(out, results);
}

}  // namespace troupe
