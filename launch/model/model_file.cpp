#include "launch/model/model_file.hpp"

#include <torch/nn/module.h>

#include <filesystem>
#include <map>
#include <optional>
#include <sstream>

#include "launch/model/gathered_model.hpp"
#include "launch/model/load_weights.hpp"
#include "launch/process/rank_lines.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/plain_archive.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/checkpoint/safetensors_folder.hpp"
#include "tensor_io/checkpoint/safetensors_index.hpp"
#include "tensor_io/checkpoint/state_matching.hpp"
#include "tensor_io/checkpoint/stored_checkpoint.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {

namespace fs = std::filesystem;

namespace {

// By its bytes: the name of a blob in a cache says nothing. By its name where the bytes are of neither format.
bool is_torch_save(const std::string& path) {
  const auto format = foreign_format(BoundedFile("reading a model", path, Links::followed));
  return path.ends_with(".pt") || path.ends_with(".pth") || path.ends_with(".bin") || format.starts_with("is a zip") ||
         format.starts_with("is a Python pickle");
}

NamedTensors read_file(const std::string& path, std::vector<std::string>* notes) {
  if (!is_torch_save(path)) return load_safetensors(path);
  std::vector<std::string> skipped;
  auto tensors = load_plain_archive(path, &skipped);
  if (notes != nullptr && !skipped.empty()) notes->push_back("left out, not tensors: " + names_text(skipped));
  return tensors;
}

// What errors call the call and its settings.
struct Words {
  const char *operation, *renames, *remedy, *remedy_for_names;
};
constexpr Words kConfigWords{"init_from", "init_rename",
                             "--init_rename old=new maps names, --init_allow_missing true takes what fits",
                             "--init_rename old=new maps names"};
constexpr Words kCallWords{"load_weights", "rename",
                           "LoadOptions::rename (old=new) maps names, allow_missing takes what fits",
                           "LoadOptions::rename (old=new) maps names"};

std::vector<std::pair<std::string, std::string>> parse_renames(const std::string& text, const char* field) {
  std::vector<std::pair<std::string, std::string>> renames;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    const auto equals = word.find('=');
    if (equals == word.npos || equals == 0)
      throw Error(ErrorCode::usage, field, printable(word) + " is not old=new", "for instance encoder.=backbone.");
    renames.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return renames;
}

void rename(NamedTensors& tensors, const std::string& text, const char* field) {
  const auto renames = parse_renames(text, field);
  std::vector<bool> fits(renames.size());
  for (auto& [name, tensor] : tensors) {
    for (std::size_t i = 0; i < renames.size(); ++i) {
      if (!name.starts_with(renames[i].first)) continue;
      name = renames[i].second + name.substr(renames[i].first.size());
      fits[i] = true;
      break;
    }
  }
  for (std::size_t i = 0; i < renames.size(); ++i) {
    if (!fits[i])
      throw Error(ErrorCode::usage, field, "no tensor name in the file begins with " + printable(renames[i].first));
  }
}

std::string count(std::size_t n, const std::string& what) { return std::to_string(n) + " " + what; }

}  // namespace

NamedTensors live_tensors(torch::nn::Module& model) {
  NamedTensors live;
  for (const auto& item : model.named_parameters()) live.emplace_back(item.key(), item.value().detach());
  for (const auto& item : model.named_buffers()) live.emplace_back(item.key(), item.value());
  return live;
}

bool is_foreign_folder(const std::string& path) {
  return !is_checkpoint(path) && list_checkpoints(path).empty() && holds_safetensors(path);
}

std::string checkpoint_at(const std::string& path) {
  if (is_checkpoint(path)) return path;
  std::optional<std::int64_t> latest;
  try {
    latest = read_pointer(path, "latest");
  } catch (const Error& damaged) {
    print_error_line(std::string("troupe: ") + damaged.what());
  }
  const auto candidates = newest_first(list_checkpoints(path), latest);
  if (candidates.empty()) refuse_foreign_checkpoint(path);
  if (candidates.empty())
    throw Error(ErrorCode::usage, printable(path), "is not a checkpoint and contains none",
                "name a step-... folder or the directory it is in");
  return candidates.front().path;
}

NamedTensors read_model(const std::string& given, bool everything, std::vector<std::string>* notes) {
  std::error_code error;
  if (!fs::exists(given, error)) throw Error(ErrorCode::usage, printable(given), "is not there");
  const auto path = path_meant(given);
  if (!fs::is_directory(path, error)) return read_file(path, notes);
  if (is_foreign_folder(path)) return read_safetensors_folder(path, notes);
  const CheckpointFolder checkpoint(checkpoint_at(path));
  NamedTensors model;
  for (const auto& [name, entry] : checkpoint.entries()) {
    if (everything) model.emplace_back(name, checkpoint.read(name));
    if (!everything && name.starts_with(kModelPrefix))
      model.emplace_back(name.substr(kModelPrefix.size()), checkpoint.read(name));
  }
  if (model.empty()) throw Error(ErrorCode::bad_data, path, "the checkpoint holds no tensor of a model");
  return model;
}

std::string load_initial_model(torch::nn::Module& model, const InitialModelOptions& options) {
  const auto& words = options.by_config ? kConfigWords : kCallWords;
  const auto operation = words.operation + (" " + options.path);
  NamedTensors saved;
  std::vector<std::string> notes;
  try {
    saved = read_model(options.path, false, &notes);
  } catch (const Error& error) {
    auto report = error.report();
    report.operation = words.operation + (" " + report.operation);
    throw Error(std::move(report));
  }
  rename(saved, options.rename, words.renames);
  const auto live = live_tensors(model);
  std::map<std::string, at::Tensor> dtypes;
  for (const auto& [name, tensor] : live) dtypes.emplace(name, tensor);
  for (auto& [name, tensor] : saved) {
    const auto target = dtypes.find(name);
    if (target != dtypes.end()) tensor = tensor.to(target->second.scalar_type());
  }
  const auto difference = compare_state(saved, live);
  if (!difference.empty() && !options.allow_missing) {
    throw Error(ErrorCode::mismatch, operation, difference.describe(), words.remedy);
  }
  NamedTensors from, to;
  for (const auto& [name, tensor] : saved) {
    const auto target = dtypes.find(name);
    if (target == dtypes.end() || target->second.sizes() != tensor.sizes()) continue;
    from.emplace_back(name, tensor);
    to.emplace_back(name, target->second);
  }
  if (from.empty())
    throw Error(ErrorCode::mismatch, operation, "no tensor fits: " + difference.describe(), words.remedy_for_names);
  copy_state(from, to, "loading the initial model");
  auto report = (options.by_config ? "initial model from " : "weights from ") + options.path + ": " +
                count(from.size(), "of " + std::to_string(live.size()) + " tensors");
  if (!difference.empty()) report += "; " + difference.describe();
  for (const auto& note : notes) report += "; " + note;
  return report;
}

std::string load_weights(torch::nn::Module& model, const std::string& path, const LoadOptions& options) {
  return load_initial_model(model, {path, options.rename, options.allow_missing, false});
}

}  // namespace troupe
