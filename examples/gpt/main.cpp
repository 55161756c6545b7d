// A small GPT on bytes of text, or on token shards of nanoGPT and llm.c.
//
//   build/release/launch/troupe launch --nproc 2 build/release/examples/gpt/gpt --config examples/gpt/gpt.toml
//   build/release/examples/gpt/gpt --config examples/gpt/gpt.toml --generate "The licence"
//   build/release/examples/gpt/gpt --data tokens --data_dir SHARDS --vocab_size 50257    (llm.c's or nanoGPT's *.bin:
//   docs/data.md)
//
// expect: a loss that falls from 5.5 to about 1.4 in 1,000 steps (a few minutes), tokens per second on every line, the
// path of the last checkpoint; then 200 bytes that look much like a licence.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "gpt.hpp"

namespace {

using troupe::Config;
using troupe::Error;
using troupe::ErrorCode;

void declare(Config& config) {
  config.tensor_plan = kGptPlan;
  config.declare("vocab_size", std::int64_t{256}, "256: bytes of text; the tokenizer's for .bin shards (GPT-2: 50257)");
  config.declare("block_size", std::int64_t{128}, "tokens of a sample, the context length of the model");
  config.declare("token_bits", std::int64_t{0},
                 "bits of a token in .bin shards without a header, 16 or 32; 0: 16, unless the ids do not fit");
  config.declare("n_layer", std::int64_t{4}, "transformer layers");
  config.declare("n_head", std::int64_t{4}, "attention heads");
  config.declare("n_embd", std::int64_t{128}, "channels");
  config.declare("dropout", 0.0, "of embeddings, attention outputs and layers");
  config.declare("positions", std::string("learned"), "learned or rotary");
  config.declare("tied_head", true, "the output layer is the embedding, transposed");
  config.declare("generate", std::string(),
                 "continue this prompt with the model of a checkpoint (--resume), instead of training");
  config.declare("max_new_tokens", std::int64_t{200}, "tokens to generate");
  config.declare("temperature", 0.8, "of sampling; 0: always the likeliest token");
  config.declare("top_k", std::int64_t{40}, "sample from this many of the likeliest tokens; 0: from all");
}

Error wrong(const std::string& field, const std::string& cause) { return Error(ErrorCode::usage, field, cause); }

GptOptions model_options(const Config& config) {
  GptOptions options;
  options.vocab_size = config.get<std::int64_t>("vocab_size");
  options.block_size = config.get<std::int64_t>("block_size");
  options.n_layer = config.get<std::int64_t>("n_layer");
  options.n_head = config.get<std::int64_t>("n_head");
  options.n_embd = config.get<std::int64_t>("n_embd");
  options.dropout = config.get<double>("dropout");
  options.tied_head = config.get<bool>("tied_head");
  const auto positions = config.get<std::string>("positions");
  if (positions != "learned" && positions != "rotary")
    throw wrong("positions", "'" + positions + "' is neither learned nor rotary");
  options.rotary = positions == "rotary";
  return options;
}

Gpt model(const Config& config) { return Gpt(model_options(config)); }

troupe::Datasets data(const Config& config) {
  troupe::TokenOptions options;
  options.block_size = config.get<std::int64_t>("block_size");
  options.vocab_size = config.get<std::int64_t>("vocab_size");
  options.token_bits = config.get<std::int64_t>("token_bits");
  if (options.block_size < 1) throw wrong("block_size", "it must be at least 1");
  if (config.data != "tokens" && config.sources.contains("data"))
    throw wrong("data", "a language model reads tokens, not " + config.data);
  std::istringstream list(config.data_dir);
  for (std::string path; std::getline(list, path, ',');) options.paths.push_back(path);
  if (options.paths.empty()) {
    for (const char* path : {GPT_DOCUMENTS "/README.md", GPT_DOCUMENTS "/docs", "/usr/share/common-licenses"}) {
      if (std::filesystem::exists(path)) options.paths.emplace_back(path);
    }
  }
  auto [train, held_out] = troupe::skip_bad_samples(troupe::read_tokens(options), config);
  return {train, held_out};
}

troupe::Loss loss(Gpt& net, const troupe::Batch& batch, const Config& config) {
  const auto scores = net(batch.input).flatten(0, 1);
  const auto target = batch.target.flatten();
  const auto value = torch::nn::functional::cross_entropy(
      scores, target, torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(config.label_smoothing));
  const auto right = scores.detach().argmax(1).eq(target).to(torch::kDouble).mean();
  return {value, right * static_cast<double>(batch.numel())};
}

/// Weight decay is for matrices, not for biases and norms.
std::unique_ptr<troupe::Optimizer> optimizer(const GptImpl& net, const Config& config) {
  troupe::ParameterGroup matrices, rest;
  for (const auto& item : net.named_parameters()) {
    (item.value().dim() > 1 ? matrices : rest).parameters.emplace_back(item.key(), item.value());
  }
  rest.weight_decay = 0;
  return troupe::make_optimizer(config, {matrices, rest});
}

std::vector<std::int64_t> encode(const std::string& prompt, std::int64_t vocab_size) {
  std::vector<std::int64_t> ids;
  if (vocab_size == 256) {
    for (const char c : prompt) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::istringstream words(prompt);
  for (std::int64_t id = 0; words >> id;) ids.push_back(id);
  const bool whole = words.eof() && !ids.empty();
  if (!whole || std::any_of(ids.begin(), ids.end(), [&](auto id) { return id < 0 || id >= vocab_size; })) {
    throw wrong("generate", "with a vocab_size other than 256 the prompt is a list of token ids below " +
                                std::to_string(vocab_size));
  }
  return ids;
}

void print(const std::vector<std::int64_t>& ids, std::int64_t vocab_size) {
  for (const auto id : ids) {
    if (vocab_size != 256) {
      std::printf("%lld ", static_cast<long long>(id));
    } else {
      // A model's text is nobody's word: nothing in it may drive the terminal.
      const bool control = id == 0x7f || (id < 0x20 && id != '\n' && id != '\t');
      std::putchar(control ? '?' : static_cast<int>(id));
    }
  }
  std::putchar('\n');
}

/// The settings with the model's own as they were when the checkpoint was written.
Config with_model_of(Config config, const troupe::TrainingState& state) {
  const auto text = state.metadata.find("config");
  const auto written =
      nlohmann::json::parse(text == state.metadata.end() ? "" : text->second, nullptr, /*allow_exceptions=*/false);
  for (const char* name : {"vocab_size", "block_size", "n_layer", "n_head", "n_embd", "positions", "tied_head"}) {
    if (!written.is_object() || !written.contains(name)) {
      throw Error(ErrorCode::mismatch, "resume",
                  std::string("the checkpoint's config has no ") + name + ": it is from another program");
    }
    troupe::set_config_value(config, name,
                             written[name].is_string() ? written[name].get<std::string>() : written[name].dump(),
                             "checkpoint");
  }
  return config;
}

/// That of --resume, else the newest.
troupe::LoadResult trained_model(const Config& settings) try {
  return troupe::load_checkpoint(settings.checkpoint_dir, settings.resume.empty() ? "latest" : settings.resume);
} catch (const Error& error) {
  if (settings.sources.contains("resume") || error.code() != ErrorCode::unavailable) throw;
  auto report = error.report();
  report.remedy = "train first, or name a checkpoint: --resume PATH";
  throw Error(report);
}

void generate_text(const Config& settings) {
  const auto loaded = trained_model(settings);
  const auto config = with_model_of(settings, loaded.state);
  const auto prompt = config.get<std::string>("generate");
  SamplingOptions sampling;
  sampling.max_new_tokens = config.get<std::int64_t>("max_new_tokens");
  sampling.temperature = config.get<double>("temperature");
  sampling.top_k = config.get<std::int64_t>("top_k");
  sampling.seed = config.seed;
  if (sampling.temperature < 0) throw wrong("temperature", "it must be at least 0");
  if (sampling.max_new_tokens < 1 || sampling.top_k < 0)
    throw wrong("max_new_tokens, top_k", "they must be at least 1 and 0");
  const auto options = model_options(config);
  const auto ids = encode(prompt, options.vocab_size);
  Gpt model(options);
  troupe::NamedTensors live;
  for (const auto& item : model->named_parameters()) live.emplace_back("model." + item.key(), item.value().detach());
  troupe::copy_state(troupe::with_prefix(loaded.state.tensors, "model."), live, "loading the model of " + loaded.path);
  std::fprintf(stderr, "%s, step %lld\n", loaded.path.c_str(), static_cast<long long>(loaded.state.step));
  std::fputs(prompt.c_str(), stdout);
  if (options.vocab_size != 256) std::putchar(' ');
  print(generate(*model, ids, sampling), options.vocab_size);
}

}  // namespace

int main(int argc, char** argv) {
  const troupe::JobOf<Gpt> job{.model = model, .data = data, .loss = loss, .optimizer = optimizer};
  const bool generates = std::any_of(argv + 1, argv + argc,
                                     [](const char* word) { return std::string_view(word).starts_with("--generate"); });
  return troupe::main(
      argc, argv,
      [&](troupe::Rank& rank) {
        if (rank.config().get<std::string>("generate").empty()) {
          troupe::train(job, rank);
        } else if (rank.is_main()) {
          generate_text(rank.config());
        }
      },
      [&](Config& config) {
        declare(config);
        if (generates) config.run_dir.clear(), config.resume = "latest";  // reads a run, and is none itself
      });
}
