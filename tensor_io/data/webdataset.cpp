#include "tensor_io/data/webdataset.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/file_names.hpp"
#include "tensor_io/data/files_hash.hpp"
#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/files/braces.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostMemberBytes = 256 << 20, kMostLabelBytes = 64, kMostIndexBytes = 64 << 20;
constexpr std::int64_t kOneIn = 20;
constexpr const char *kIndexFile = "index.json", *kIndexRemedy = "make the index again, or remove it";

/// "a.tar.gz" of "a.tar"; empty if the name is not one of a compressed shard.
std::string uncompressed(const fs::path& path) {
  const auto extension = in_small_letters(path.extension().string());
  if (extension == ".tgz" || extension == ".tbz2" || extension == ".txz") return path.stem().string() + ".tar";
  const bool outer =
      extension == ".gz" || extension == ".zst" || extension == ".xz" || extension == ".bz2" || extension == ".lz4";
  return outer && in_small_letters(path.stem().extension().string()) == ".tar" ? path.stem().string() : "";
}

std::vector<std::string> shards_in(const std::string& folder) {
  std::vector<std::string> paths, compressed;
  std::error_code error;
  fs::directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const auto& path = entry->path();
    if (path.filename().string().starts_with(".")) continue;
    if (in_small_letters(path.extension().string()) == ".tar") paths.push_back(path.string());
    if (!uncompressed(path).empty()) compressed.push_back(path.string());
  }
  if (error) throw Error(ErrorCode::io, folder, error.message(), "set data_dir to a folder that can be read");
  std::sort(paths.begin(), paths.end());
  std::sort(compressed.begin(), compressed.end());
  for (const auto& path : compressed) {
    const auto plain = (fs::path(path).parent_path() / uncompressed(path)).string();
    if (std::find(paths.begin(), paths.end(), plain) != paths.end()) continue;
    throw Error(ErrorCode::bad_data, path, "it is compressed, and only a plain tar can be read in any order",
                "unpack it (gunzip, zstd -d)");
  }
  if (paths.empty())
    throw Error(ErrorCode::bad_data, folder, "it holds no .tar file",
                "set data_dir to the shards' folder, or name-{000000..000146}.tar");
  return paths;
}

std::vector<std::string> shard_paths(const std::string& data_dir) {
  std::error_code unknown;
  auto paths = fs::is_directory(data_dir, unknown) ? shards_in(data_dir) : expand_braces(data_dir);
  std::set<std::string> seen;
  for (const auto& path : paths) {
    if (!seen.insert(path).second)
      throw Error(ErrorCode::usage, "data_dir", "shard " + path + " is named twice", "name each shard once");
    if (!fs::exists(path, unknown)) {
      const bool wildcard = path.find_first_of("*?") != std::string::npos;
      throw Error(ErrorCode::unavailable, path, "there is no such shard",
                  wildcard ? "name the folder, or write name-{000000..000146}.tar: * and ? are not expanded"
                           : "correct data_dir, or put the file there");
    }
  }
  return paths;
}

/// As Python's int reads it, which webdataset decodes .cls with: white space around it and a sign are allowed.
std::int64_t label_of(const std::string& text, const std::string& where, std::int64_t classes) {
  constexpr const char* kSpace = " \t\n\v\f\r";
  const auto begin = text.find_first_not_of(kSpace);
  auto word = begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
  if (word.size() > 1 && word[0] == '+' && word[1] != '-') word.erase(0, 1);
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error == std::errc::invalid_argument || end != word.data() + word.size()) {
    throw Error(ErrorCode::bad_data, where, ".cls: " + printable(text) + " is not a whole number",
                "write the class's number, 0 to " + std::to_string(classes - 1) + ", as digits");
  }
  if (error != std::errc() || value < 0 || value >= classes) {
    throw Error(ErrorCode::bad_data, where,
                ".cls: " + printable(text) + " is not a class below num_classes " + std::to_string(classes),
                "set num_classes, or fix the shard");
  }
  return value;
}

struct ShardsByPart {
  std::vector<std::size_t> train, held_out;
  std::string held_out_name;  // "val" or "test"
  std::size_t not_read = 0;   // test, if there is val
};

/// By the shard's name, or by its folder's if they lie in several.
ShardsByPart shards_by_part(const ShardFolder& folder) {
  std::set<std::string> folders;
  for (std::size_t i = 0; i < folder.shards(); ++i) folders.insert(fs::path(folder.path(i)).parent_path().string());
  std::map<PartName, std::vector<std::size_t>> parts;
  for (std::size_t i = 0; i < folder.shards(); ++i) {
    const fs::path path(folder.path(i));
    auto part = part_in_name(path.filename().string());
    if (part == PartName::none && folders.size() > 1) part = part_named(path.parent_path().filename().string());
    parts[part == PartName::none ? PartName::train : part].push_back(i);
  }
  const auto validation = parts[PartName::validation], test = parts[PartName::test];
  if (validation.empty()) return {parts[PartName::train], test, "test", 0};
  return {parts[PartName::train], validation, "val", test.size()};
}

}  // namespace

ShardFolder::ShardFolder(const std::string& data_dir, bool keep_start, std::int64_t most_samples)
    : keep_start_(keep_start), most_samples_(most_samples) {
  for (auto& path : shard_paths(data_dir)) {
    entries_.push_back(std::make_unique<Entry>());
    entries_.back()->path = std::move(path);
  }
  std::set<std::string> folders;  // a pattern may lead to several
  for (const auto& entry : entries_) folders.insert(fs::path(entry->path).parent_path().string());
  for (const auto& folder : folders) read_index(folder);
  for (std::size_t shard = 0; shard < entries_.size(); ++shard) {
    if (entries_[shard]->samples < 0)
      entries_[shard]->samples = static_cast<std::int64_t>(open(shard)->samples().size());
  }
}

void ShardFolder::read_index(const std::string& folder) {
  const auto path = (fs::path(folder) / kIndexFile).string();
  std::error_code unknown;
  if (!fs::exists(path, unknown)) return;
  const BoundedFile file("reading the index of shards", path);
  const auto json = [&] {
    try {
      return parse_bounded_json(file.read_all(kMostIndexBytes), path, JsonLimits{});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::bad_data) throw;
      file.refuse(error.report().cause, kIndexRemedy);
    }
  }();
  const auto list = json.is_object() ? json.find("shardlist") : json.end();
  if (!json.is_object() || list == json.end() || !list->is_array())
    file.refuse("field shardlist: it is missing, or no list",
                R"(remove the file, or write {"shardlist": [{"url": NAME, "nsamples": N}, ...]})");
  std::map<std::string, std::int64_t> samples;
  for (const auto& each : *list) {
    if (!each.is_object() || !each.contains("url") || !each["url"].is_string() || !each.contains("nsamples") ||
        !each["nsamples"].is_number_unsigned() || each["nsamples"].get<std::uint64_t>() > (std::uint64_t{1} << 40))
      file.refuse("entry " + std::to_string(samples.size()) +
                  " of shardlist: it needs url, a string, and nsamples, a number");
    samples[fs::path(each["url"].get<std::string>()).filename().string()] = each["nsamples"].get<std::int64_t>();
  }
  for (auto& entry : entries_) {
    const fs::path shard(entry->path);
    const auto found = samples.find(shard.filename().string());
    if (shard.parent_path() != folder || found == samples.end()) continue;
    entry->samples = found->second;
    entry->indexed = true;
  }
}

std::shared_ptr<const TarShard> ShardFolder::kept_shard(std::size_t number) const {
  std::lock_guard lock(mutex_);
  auto& entry = *entries_[number];
  if (entry.shard) recent_.splice(recent_.begin(), recent_, entry.place);
  return entry.shard;
}

std::shared_ptr<const TarShard> ShardFolder::open(std::size_t number) const {
  if (auto shard = kept_shard(number)) return shard;
  auto& entry = *entries_[number];
  std::lock_guard reading(entry.mutex);
  if (auto shard = kept_shard(number)) return shard;  // another thread was quicker
  auto shard = read_headers(number);
  std::lock_guard lock(mutex_);
  entry.found = static_cast<std::int64_t>(shard->samples().size());
  entry.shard = shard;
  recent_.push_front(number);
  entry.place = recent_.begin();
  kept_samples_ += entry.found;
  while (recent_.size() > kMostKept && kept_samples_ > most_samples_) {
    auto& oldest = *entries_[recent_.back()];
    kept_samples_ -= oldest.found;
    oldest.shard.reset();
    recent_.pop_back();
  }
  return shard;
}

std::shared_ptr<const TarShard> ShardFolder::read_headers(std::size_t number) const {
  const auto& entry = *entries_[number];
  auto shard = std::make_shared<const TarShard>(entry.path, keep_start_);
  const auto found = static_cast<std::int64_t>(shard->samples().size());
  std::lock_guard lock(mutex_);
  const bool opened = entry.found >= 0;
  const auto expected = opened ? entry.found : entry.samples;
  if (expected >= 0 && found != expected && (opened || shard->cut_off().empty())) {
    throw Error(ErrorCode::mismatch, entry.path,  // no bad sample, which may be skipped
                "it has " + std::to_string(found) + " samples, " +
                    (opened || !entry.indexed ? "at the start it had " : std::string(kIndexFile) + " says ") +
                    std::to_string(expected),
                opened || !entry.indexed ? "leave the shards alone while a job reads them" : kIndexRemedy);
  }
  if (!opened) passed_over_.add_all(shard->passed_over());
  if (!shard->cut_off().empty() && !opened)
    notices_.push_back(shard->cut_off() + "; its first " + std::to_string(found) + " samples are used");
  return shard;
}

std::int64_t ShardFolder::opened() const {
  std::lock_guard lock(mutex_);
  return std::count_if(entries_.begin(), entries_.end(), [](const auto& entry) { return entry->found >= 0; });
}

std::size_t ShardFolder::kept() const {
  std::lock_guard lock(mutex_);
  return recent_.size();
}

PassedOver ShardFolder::passed_over() const {
  std::lock_guard lock(mutex_);
  return passed_over_;
}

std::vector<std::string> ShardFolder::take_notices() const {
  std::lock_guard lock(mutex_);
  return std::exchange(notices_, {});
}

WebDataset::WebDataset(std::shared_ptr<const ShardFolder> folder, std::vector<std::size_t> shards, Part part,
                       const ImageReader& reader, std::int64_t num_classes)
    : folder_(std::move(folder)), shards_(std::move(shards)), part_(part), reader_(reader), num_classes_(num_classes) {
  std::int64_t end = 0;
  for (const auto shard : shards_) {
    const auto all = folder_->samples(shard), rest = all / kOneIn;
    ends_.push_back(end += part_ == Part::all ? all : part_ == Part::rest ? rest : all - rest);
  }
}

std::vector<std::int64_t> WebDataset::shard_sizes() const {
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < ends_.size(); ++i) sizes.push_back(ends_[i] - (i == 0 ? 0 : ends_[i - 1]));
  return sizes;
}

std::uint64_t WebDataset::files_hash() const {
  FilesHash hash;
  for (const auto shard : shards_)
    hash.add(fs::path(folder_->path(shard)).filename().string(), folder_->samples(shard));
  return hash.value();
}

std::int64_t WebDataset::read(std::int64_t index, const SampleContext& context, float* out) const {
  const auto place = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  if (index < 0 || place >= ends_.size())
    throw Error(ErrorCode::usage, name(),
                "sample " + std::to_string(index) + " is outside its " + std::to_string(size()));
  const auto in_part = index - (place == 0 ? 0 : ends_[place - 1]);
  const auto number = part_ == Part::all    ? in_part
                      : part_ == Part::rest ? (in_part + 1) * kOneIn - 1
                                            : in_part + in_part / (kOneIn - 1);
  const auto held = folder_->open(shards_[place]);
  const auto& shard = *held;
  // Of a shard that is cut off, whose loss was told, what is there stands in for what the index promises; of others all
  // is there.
  const auto& sample = shard.samples()[static_cast<std::size_t>(number) % shard.samples().size()];
  const auto where = shard.where(sample);
  const auto* picture = sample.find({"jpg", "jpeg", "png"});
  const auto* label = sample.find({"cls"});
  if (picture == nullptr || label == nullptr) {
    const bool dots = std::any_of(sample.parts.begin(), sample.parts.end(),
                                  [](const auto& part) { return part.extension.find('.') != std::string::npos; });
    throw Error(ErrorCode::bad_data, where,
                std::string(picture == nullptr ? "it has no .jpg, .jpeg or .png" : "it has no .cls") +
                    "; its members end in " + sample.extensions(),
                dots ? "a sample's name ends at its first dot: take the other dots out of the names"
                     : "a sample is a picture and its label, members with the same name, one after the other");
  }
  const auto value = label_of(shard.read(*label, kMostLabelBytes), where, num_classes_);
  const auto content = shard.read(*picture, kMostMemberBytes);
  reader_.read(std::as_bytes(std::span(content)), where + ", ." + picture->extension, index, context, out);
  return value;
}

Example WebDataset::get(std::int64_t index, const SampleContext& context) const {
  auto batch = get_batch(std::span(&index, 1), context);
  return {batch.input[0], batch.target[0]};
}

Batch WebDataset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  return batch_of_images(indices, reader_.shape(),
                         [&](std::int64_t index, float* out) { return read(index, context, out); });
}

TrainAndHeldOut read_webdataset(const DataOptions& options) {
  const auto folder = std::make_shared<const ShardFolder>(options.data_dir, options.on_bad_sample == "skip");
  using Part = WebDataset::Part;
  const auto shards = shards_by_part(*folder);
  const bool whole = !shards.held_out.empty();
  if (shards.train.empty()) {
    throw Error(ErrorCode::bad_data, options.data_dir, "the names of its shards all say val or test",
                "add shards to train on, or rename these");
  }
  const auto make = [&](const std::vector<std::size_t>& mine, Part part, bool augment) {
    return std::make_shared<WebDataset>(folder, mine, whole ? Part::all : part, ImageReader(options, augment),
                                        options.num_classes);
  };
  auto train = make(shards.train, Part::most, options.augment);
  auto held_out = make(whole ? shards.held_out : shards.train, Part::rest, false);
  const auto passed_over = folder->passed_over().to_string();
  if (train->size() == 0)
    throw Error(ErrorCode::bad_data, options.data_dir,
                "its shards hold no sample to train on" + (passed_over.empty() ? "" : "; " + passed_over),
                "a sample is a picture and its label, members with the same name");
  const auto count = [](std::size_t number, const std::string& what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
  };
  train->set_description("webdataset, " + count(folder->shards(), "shard") + " with " +
                         count(static_cast<std::size_t>(train->size() + held_out->size()), "sample") +
                         (passed_over.empty() ? "" : "; " + passed_over) +
                         (shards.not_read == 0 ? "" : "; " + count(shards.not_read, "shard") + " named test not read"));
  held_out->set_description(whole ? count(shards.held_out.size(), "shard") + " named " + shards.held_out_name
                                  : "every 20th of each shard");
  return {std::move(train), held_out->size() > 0 ? std::move(held_out) : nullptr};
}

}  // namespace troupe
