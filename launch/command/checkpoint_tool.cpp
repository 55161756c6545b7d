#include "launch/command/checkpoint_tool.hpp"

#include <sys/stat.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>

#include "launch/config/command_flags.hpp"
#include "launch/model/model_file.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/formatted.hpp"
#include "launch/process/terminal.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/plain_archive.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/checkpoint/stored_checkpoint.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHelp =
    "usage: troupe checkpoint VERB PATH ...\n"
    "\n"
    "  ls DIR             the checkpoints in a directory: step, size, which is the latest and the best\n"
    "  inspect PATH       what a checkpoint, or a .safetensors or torch.save file, holds: every tensor with dtype and "
    "shape\n"
    "  verify PATH        read everything and compare every hash, of one checkpoint or of all in a directory\n"
    "  convert FROM TO    write the model's tensors into one file: TO ends in .safetensors, or in .pt for Python's "
    "torch.load\n"
    "  --all              convert: also the optimizer's tensors, all under their full names\n"
    "\n"
    "PATH is a step-... folder, a directory of checkpoints (its latest is used), DIR/best, a folder of safetensors "
    "files, or a file.\n"
    "\n"
    "exit code: 0, or 65 if a checkpoint is bad, or 2 if PATH is not there\n"
    "example: troupe checkpoint convert runs/latest/checkpoints model.safetensors\n";

std::string human_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return formatted("%.*f %s", unit == 0 ? 0 : 1, value, kUnits[unit]);
}

// What a file says, for a terminal.
std::string shown(const std::string& text) { return displayable(text, text.size()); }

std::string written_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return "?";
  std::tm local{};
  localtime_r(&status.st_mtime, &local);
  char text[32];
  return std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local) > 0 ? text : "?";
}

void need_directory(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) throw Error(ErrorCode::usage, printable(path), "is not there");
  if (!fs::is_directory(path, error))
    throw Error(ErrorCode::usage, printable(path), "is not a directory",
                "troupe checkpoint inspect shows what a file holds");
}

// Of one checkpoint the directory that it is in.
std::string directory_of_checkpoints(const std::string& path) {
  need_directory(path);
  return is_checkpoint(path) ? fs::canonical(path).parent_path().string() : path;
}

int list(const std::string& given) {
  const auto directory = directory_of_checkpoints(path_meant(given));
  const auto pointer = [&](const char* name) -> std::optional<std::int64_t> {
    try {
      return read_pointer(directory, name);
    } catch (const Error& error) {
      std::fprintf(stderr, "troupe: %s\n", error.what());
      return std::nullopt;
    }
  };
  const auto latest = pointer("latest"), best = pointer("best");
  const auto checkpoints = list_checkpoints(directory);
  if (checkpoints.empty()) return std::printf("no checkpoint in %s\n", directory.c_str()), 0;
  int code = 0;
  std::printf("%10s %6s %6s %10s  %-19s  %s\n", "step", "epoch", "ranks", "size", "written", "");
  for (const auto& entry : checkpoints) {
    std::string marks = latest == entry.step ? "latest" : "";
    if (best == entry.step) marks += marks.empty() ? "best" : ", best";
    try {
      const CheckpointFolder folder(entry.path);
      folder.check();
      const auto& manifest = folder.manifest();
      std::uint64_t bytes = 0;
      for (const auto& [name, digest] : manifest.files) bytes += digest.bytes;
      std::printf("%10lld %6lld %6lld %10s  %-19s  %s\n", static_cast<long long>(manifest.step),
                  static_cast<long long>(manifest.epoch), static_cast<long long>(manifest.ranks),
                  human_bytes(bytes).c_str(), written_at(entry.path).c_str(), marks.c_str());
    } catch (const Error& error) {
      std::printf("%10lld  bad: %s\n", static_cast<long long>(entry.step), error.what());
      code = exit_code(ErrorCode::bad_data);
    }
  }
  return code;
}

void print_tensor(const std::string& name, at::ScalarType dtype, const std::vector<std::int64_t>& shape,
                  const std::string& where) {
  std::printf("  %-48s %-5s %-22s %s\n", printable(name).c_str(),
              std::string(safetensors_dtype(dtype).value_or("?")).c_str(), c10::str(at::IntArrayRef(shape)).c_str(),
              shown(where).c_str());
}

void print_count(std::size_t tensors, std::int64_t numel, std::uint64_t bytes) {
  std::printf("%zu tensors, %lld numbers, %s\n", tensors, static_cast<long long>(numel), human_bytes(bytes).c_str());
}

int inspect_checkpoint(const std::string& path) {
  const CheckpointFolder folder(path);
  const auto& manifest = folder.manifest();
  std::printf("%s: step %lld, epoch %lld, step %lld of it, %lld ranks\n", path.c_str(),
              static_cast<long long>(manifest.step), static_cast<long long>(manifest.epoch),
              static_cast<long long>(manifest.step_in_epoch), static_cast<long long>(manifest.ranks));
  for (const auto& [name, value] : manifest.metadata)
    std::printf("  %s: %s\n", shown(name).c_str(), shown(value).c_str());
  std::printf("files:\n");
  for (const auto& [name, digest] : manifest.files) {
    std::printf("  %-32s %10s  xxh3 %s\n", shown(name).c_str(), human_bytes(digest.bytes).c_str(),
                shown(digest.xxh3).c_str());
  }
  std::printf("tensors:\n");
  std::int64_t total = 0;
  std::uint64_t bytes = 0;
  for (const auto& tensor : manifest.tensors) {
    const auto numel = checked_numel(tensor.shape, c10::elementSize(tensor.dtype)).value_or(0);
    total += numel;
    bytes += static_cast<std::uint64_t>(numel) * c10::elementSize(tensor.dtype);
    print_tensor(tensor.name, tensor.dtype, tensor.shape,
                 tensor.slices.size() == 1 ? tensor.slices[0].file : std::to_string(tensor.slices.size()) + " slices");
  }
  print_count(manifest.tensors.size(), total, bytes);
  return 0;
}

NamedTensors read_and_tell(const std::string& path, bool everything) {
  std::vector<std::string> notes;
  auto tensors = read_model(path, everything, &notes);
  for (const auto& note : notes) std::fprintf(stderr, "troupe: %s\n", shown(note).c_str());
  return tensors;
}

int inspect(const std::string& given) {
  std::error_code error;
  const auto path = path_meant(given);
  if (fs::is_directory(path, error) && !is_foreign_folder(path)) return inspect_checkpoint(checkpoint_at(path));
  const auto tensors = read_and_tell(path, false);
  std::int64_t total = 0;
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    total += tensor.numel();
    bytes += tensor.nbytes();
    print_tensor(name, tensor.scalar_type(), tensor.sizes().vec(), "");
  }
  print_count(tensors.size(), total, bytes);
  return 0;
}

int verify(const std::string& given) {
  const auto path = path_meant(given);
  need_directory(path);
  std::vector<std::string> paths;
  if (is_checkpoint(path)) {
    paths.push_back(path);
  } else {
    for (const auto& entry : list_checkpoints(path)) paths.push_back(entry.path);
    if (paths.empty()) throw Error(ErrorCode::usage, printable(path), "is not a checkpoint and contains none");
  }
  int code = 0;
  for (const auto& folder : paths) {
    try {
      const auto verified = verify_checkpoint(folder);
      std::printf("good  %s  %s in %zu files\n", folder.c_str(), human_bytes(verified.bytes).c_str(),
                  verified.manifest.files.size());
    } catch (const Error& error) {
      std::printf("bad   %s  %s\n", folder.c_str(), error.what());
      code = exit_code(ErrorCode::bad_data);
    }
  }
  return code;
}

int convert(const std::string& from, const std::string& to, bool all) {
  const bool plain = to.ends_with(".pt") || to.ends_with(".pth");
  if (!plain && !to.ends_with(".safetensors"))
    throw Error(ErrorCode::usage, printable(to), "has an ending that names no known format",
                "end it in .safetensors, or in .pt for torch.load");
  const auto tensors = read_and_tell(from, all);
  if (plain) {
    save_plain_archive(to, tensors);
  } else {
    save_safetensors(to, tensors, {{"format", "pt"}});
  }
  std::error_code error;
  const auto bytes = fs::file_size(to, error);
  std::printf("%s: %zu tensors, %s\n", to.c_str(), tensors.size(), human_bytes(error ? 0 : bytes).c_str());
  return 0;
}

}  // namespace

int checkpoint_command(const std::vector<std::string>& words) {
  bool all = false, help = false;
  const auto places = read_words(words, {{"--all", &all}, {"--help", &help}, {"-h", &help}}, "troupe checkpoint");
  if (help) return print_help(kHelp), 0;
  static const std::map<std::string, std::size_t> kPlaces{{"ls", 1}, {"inspect", 1}, {"verify", 1}, {"convert", 2}};
  if (places.empty()) return std::fputs(kHelp, stderr), 2;
  const auto& verb = places[0];
  const auto known = kPlaces.find(verb);
  if (known == kPlaces.end()) {
    const auto near = nearest_name(verb, {"ls", "inspect", "verify", "convert"});
    throw Error(ErrorCode::usage, "troupe checkpoint", "there is no verb " + printable(verb),
                near.empty() ? "see troupe checkpoint --help" : "did you mean " + near + "?");
  }
  if (places.size() != known->second + 1 || (all && verb != "convert")) {
    throw Error(ErrorCode::usage, "troupe checkpoint " + verb,
                verb == "convert" ? "it takes FROM and TO" : "it takes one PATH and no flag",
                "see troupe checkpoint --help");
  }
  if (verb == "ls") return list(places[1]);
  if (verb == "inspect") return inspect(places[1]);
  if (verb == "verify") return verify(places[1]);
  return convert(places[1], places[2], all);
}

}  // namespace troupe
