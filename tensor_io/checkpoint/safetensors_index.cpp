#include "tensor_io/checkpoint/safetensors_index.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <regex>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReadingFolder = "reading safetensors";
constexpr const char* kWhole = "model.safetensors";
constexpr const char* kUsualIndex = "model.safetensors.index.json";
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{64} << 20;

bool is_safetensors(const std::string& name) { return name.ends_with(".safetensors"); }
// With a variant between its words, too: model.safetensors.index.fp16.json
bool is_index(const std::string& name) {
  return name.ends_with(".json") && name.find(".safetensors.index.") != name.npos;
}

[[noreturn]] void refuse_missing(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::bad_data, std::string(kReadingFolder) + ": " + path, "is missing: " + why,
              "put it there: download or copy the folder again");
}

std::string counted(std::size_t count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

void read_index(SafetensorsIndex& index) {
  const BoundedFile file("reading the index of safetensors files", index.path, Links::followed);
  if (const auto what = foreign_format(file); !what.empty()) file.refuse(what, foreign_format_remedy(what));
  const auto json =
      parse_bounded_json(file.read_all(kMaxIndexBytes), file.operation() + ": " + file.path(), {.depth = 4});
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object() || map->empty())
    file.refuse("has no 'weight_map' of tensors to files", "remove it to read all files of the folder");
  for (const auto& [tensor, name] : map->items()) {
    const auto text = name.is_string() ? name.get<std::string>() : std::string();
    if (text.empty() || text.front() == '.' || text.find('/') != text.npos || text.find('\0') != text.npos)
      file.refuse("'weight_map': tensor " + printable(tensor) + " lies in " +
                  (name.is_string() ? printable(text) : "something") +
                  ", which is not the name of a file beside the index");
    index.file_of.emplace(tensor, text);
    index.files.insert(text);
  }
  const auto folder = fs::path(index.path).parent_path();
  for (const auto& name : index.files) {
    std::error_code error;
    if (!fs::exists(folder / name, error))
      refuse_missing((folder / name).string(), fs::path(index.path).filename().string() + " has " +
                                                   counted(index.tensors_in(name), "tensor") + " of " +
                                                   std::to_string(index.file_of.size()) + " in it");
  }
}

// model-00002-of-00003.safetensors: one of three; shard-00001-... before it: of rank 0 of a job.
void check_numbers(SafetensorsIndex& index, const std::string& folder) {
  static const std::regex kNumbered("(shard-([0-9]{5})-)?(.+)-([0-9]{5})-of-([0-9]{5})\\.safetensors");
  const auto five = [](int number) {
    return std::string(5 - std::to_string(number).size(), '0') + std::to_string(number);
  };
  std::map<std::pair<std::string, std::string>, std::pair<std::set<int>, std::set<int>>> sets;  // parts, shards
  for (const auto& name : index.files) {
    std::smatch match;
    if (!std::regex_match(name, match, kNumbered)) continue;
    auto& [parts, shards] = sets[{match[3], match[5]}];
    parts.insert(std::stoi(match[4]));
    if (match[2].matched) shards.insert(std::stoi(match[2]));
  }
  for (const auto& set : sets) {
    const auto& [parts, shards] = set.second;
    const int all = std::stoi(set.first.second);
    const auto rest = [&set, five](int part) {
      return set.first.first + "-" + five(part) + "-of-" + set.first.second + ".safetensors";
    };
    for (int part = 1; part <= all; ++part) {
      if (!parts.contains(part))
        refuse_missing(folder + "/" + (shards.empty() ? "" : "shard-…-") + rest(part),
                       counted(parts.size(), "file") + " of " + std::to_string(all) +
                           " are there, and no index says what is in this one");
    }
    for (int shard = 1; !shards.empty() && shard < *shards.rbegin(); ++shard) {
      if (!shards.contains(shard)) index.absent.push_back("shard-" + five(shard) + "-" + rest(*parts.begin()));
    }
  }
}

std::optional<std::string> chosen_index(const std::set<std::string>& names, const std::string& folder) {
  if (names.contains(kUsualIndex)) return kUsualIndex;
  std::optional<std::string> chosen;
  for (const auto& name : names) {
    if (!is_index(name)) continue;
    if (chosen)
      throw Error(ErrorCode::bad_data, std::string(kReadingFolder) + ": " + folder,
                  "has two indexes, " + printable(*chosen) + " and " + printable(name), "remove one of them");
    chosen = name;
  }
  return chosen;
}

}  // namespace

std::size_t SafetensorsIndex::tensors_in(const std::string& file) const {
  return static_cast<std::size_t>(
      std::count_if(file_of.begin(), file_of.end(), [&](const auto& entry) { return entry.second == file; }));
}

SafetensorsIndex index_of_folder(const std::string& folder) {
  const auto names = names_in(folder);
  SafetensorsIndex index;
  if (names.contains(kWhole)) {
    index.files = {kWhole};
  } else if (const auto chosen = chosen_index(names, folder)) {
    index.path = (fs::path(folder) / *chosen).string();
    read_index(index);
  } else {
    std::copy_if(names.begin(), names.end(), std::inserter(index.files, index.files.end()), is_safetensors);
    for (const auto& name : index.files) {
      if (name.starts_with("rank-") && names.contains(name.substr(0, name.size() - 11) + "json"))
        refuse_missing(
            (fs::path(folder) / kManifestFile).string(),
            printable(name) + " is a rank's part of a checkpoint, and only the manifest says what belongs to it");
    }
    check_numbers(index, folder);
  }
  std::vector<std::string> passed_over;
  std::copy_if(names.begin(), names.end(), std::back_inserter(passed_over),
               [&](const auto& name) { return is_safetensors(name) && !index.files.contains(name); });
  if (!passed_over.empty())
    index.notes.push_back("passed over, since " +
                          (index.path.empty() ? std::string(kWhole) + " is there"
                                              : fs::path(index.path).filename().string() + " does not list it") +
                          ": " + names_text(passed_over));
  return index;
}

bool holds_safetensors(const std::string& folder) {
  const auto names = names_in(folder);
  return std::any_of(names.begin(), names.end(),
                     [](const auto& name) { return is_safetensors(name) || is_index(name); });
}

void refuse_foreign_checkpoint(const std::string& folder) {
  const auto names = names_in(folder);
  const auto ends = [&](const char* end) {
    return std::any_of(names.begin(), names.end(), [&](const auto& name) { return name.ends_with(end); });
  };
  const auto refuse = [&](const std::string& why, const std::string& remedy) {
    throw Error(ErrorCode::bad_data, std::string(kReadingFolder) + ": " + folder, why, remedy);
  };
  if (names.contains(".metadata") || ends(".distcp"))
    refuse("is a checkpoint of torch.distributed.checkpoint whose .metadata is a Python pickle",
           "convert it with python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt, or save "
           "with "
           "storage_writer=HuggingFaceStorageWriter(path)");
  if (ends(".bin.index.json"))
    refuse("is a model in several pytorch_model-….bin files",
           "write safetensors files with save_pretrained(FOLDER, safe_serialization=True)");
  for (const auto& name : names) {
    if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth"))
      refuse("holds no safetensors file, but " + printable(name), "name that file");
  }
}

std::string names_text(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, names.size()); ++i) text += (i == 0 ? "" : ", ") + printable(names[i]);
  return text + (names.size() > kMost ? " and " + std::to_string(names.size() - kMost) + " more" : "");
}

}  // namespace troupe
