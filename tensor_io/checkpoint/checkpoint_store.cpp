#include "tensor_io/checkpoint/checkpoint_store.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <span>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/files/file_layer.hpp"
#include "tensor_io/files/folder_lock.hpp"

namespace troupe {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::shared_ptr<FolderLock> lock_directory(const std::string& directory) {
  std::error_code error;
  refuse_foreign_link(directory);
  fs::create_directories(directory, error);
  if (error) throw_io_error("creating the checkpoint directory", directory, error.value());
  // A rank that was killed a moment ago may still hold it.
  return std::make_shared<FolderLock>(directory, directory + "/.lock", directory,
                                      "give each job a checkpoint_dir of its own", FolderLock::Options{.patience = 5s});
}

std::string step_folder_name(std::int64_t step) {
  char text[40];
  std::snprintf(text, sizeof text, "step-%08lld", static_cast<long long>(step));
  return text;
}

std::string SaveAttempt::folder_name() const {
  return std::string(kTemporaryPrefix) + step_folder_name(step) + "." + id;
}

std::optional<std::int64_t> parse_step_folder_name(std::string_view name) {
  if (!name.starts_with("step-")) return std::nullopt;
  const auto digits = name.substr(5);
  if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != digits.npos)
    return std::nullopt;
  const auto step = std::stoll(std::string(digits));
  return step_folder_name(step) == name ? std::optional<std::int64_t>(step) : std::nullopt;
}

std::vector<CheckpointEntry> list_checkpoints(const std::string& directory) {
  std::map<std::int64_t, CheckpointEntry> by_step;
  std::error_code error;
  auto entry = fs::directory_iterator(directory, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool replaced = name.starts_with(kReplacedPrefix);
    const auto step = parse_step_folder_name(replaced ? std::string_view(name).substr(kReplacedPrefix.size())
                                                      : std::string_view(name));
    if (!step) continue;
    CheckpointEntry found{*step, entry->path().string()};
    if (replaced) {
      by_step.emplace(*step, std::move(found));
    } else {
      by_step.insert_or_assign(*step, std::move(found));
    }
  }
  if (error) throw_io_error("listing", directory, error.value());
  std::vector<CheckpointEntry> checkpoints;
  checkpoints.reserve(by_step.size());
  for (auto& [step, found] : by_step) checkpoints.push_back(std::move(found));
  return checkpoints;
}

std::vector<CheckpointEntry> newest_first(std::vector<CheckpointEntry> checkpoints,
                                          std::optional<std::int64_t> latest) {
  const auto limit = latest.value_or(std::numeric_limits<std::int64_t>::max());
  std::sort(checkpoints.begin(), checkpoints.end(), [limit](const auto& a, const auto& b) {
    const bool a_above = a.step > limit, b_above = b.step > limit;
    return a_above != b_above ? b_above : a.step > b.step;
  });
  return checkpoints;
}

std::string pointer_text(std::int64_t step) {
  const auto name = step_folder_name(step);
  return name + "\nxxh3 " + xxh3_text(xxh3(name)) + "\n";
}

std::optional<std::int64_t> read_pointer(const std::string& directory, const std::string& name) {
  const auto path = (fs::path(directory) / name).string();
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return std::nullopt;
  const BoundedFile file("reading a checkpoint's name", path);
  const auto text = file.read_all(4096);
  const auto step = parse_step_folder_name(std::string_view(text).substr(0, text.find('\n')));
  if (!step || text != pointer_text(*step)) file.refuse("is damaged: it holds " + printable(text));
  return step;
}

std::optional<std::int64_t> latest_step(const std::string& directory) {
  try {
    return read_pointer(directory, "latest");
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<std::int64_t> saved_meanwhile(const std::string& directory, std::int64_t step,
                                            std::optional<std::int64_t> known) {
  const auto latest = latest_step(directory);
  return latest && *latest > step && latest != known ? latest : std::nullopt;
}

std::string path_meant(const std::string& path) {
  std::error_code error;
  const auto real = fs::canonical(path, error);
  if (error) return path;  // opening it says why
  if (fs::is_directory(real, error))
    return fs::is_symlink(path.substr(0, path.find_last_not_of('/') + 1), error) ? real.string() : path;
  if (!fs::is_regular_file(real, error)) return path;
  const auto directory = real.parent_path().string(), name = real.filename().string();
  const bool named_so = (name == "latest" || name == "best") && !list_checkpoints(directory).empty();
  std::string start(5, '\0');
  BoundedFile file("reading a checkpoint's name", real.string());
  file.read_at(0, std::as_writable_bytes(std::span(start).first(std::min<std::size_t>(5, file.bytes()))));
  if (!named_so && start != "step-") return path;
  const auto step = read_pointer(directory, name);
  for (const auto& checkpoint : list_checkpoints(directory)) {
    if (checkpoint.step == step) return checkpoint.path;
  }
  file.refuse("names " + step_folder_name(step.value_or(0)) + ", which is not there",
              "name a step-… folder that exists");
}

}  // namespace troupe
