#include "launch/command/new_project.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "launch/hosts/ssh_command.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/terminal.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlaceholder = "my_project";
constexpr const char* kNewHelp =
    "usage: troupe new DIR\n"
    "\n"
    "Writes a project into a new folder: CMakeLists.txt, main.cpp (a model, its data, its loss), train.toml, "
    "hosts.example, .gitignore and README.md. The project is named after the folder, builds against this Troupe, and "
    "trains on the digits that come with it.\n"
    "\n"
    "  DIR   a folder that is new or empty\n"
    "\n"
    "exit code: 0, or 2 if the folder holds files\n"
    "example: troupe new my_digits\n";

std::string named(std::string text, const std::string& name) {
  for (auto at = text.find(kPlaceholder); at != std::string::npos; at = text.find(kPlaceholder, at + name.size()))
    text.replace(at, std::strlen(kPlaceholder), name);
  return text;
}

bool is_there(const fs::path& path) {
  std::error_code unknown;
  return fs::exists(path, unknown);
}

// An installed Troupe may have moved since it was built, so the project's settings say where its digits are.
std::string with_digits(std::string settings, const fs::path& digits) {
  constexpr std::string_view kData = "data = \"digits\"";
  if (const auto at = settings.find(kData); at != std::string::npos && is_there(digits))
    settings.insert(settings.find('\n', at) + 1, "data_dir = " + nlohmann::json(digits.string()).dump() + "\n");
  return settings;
}

std::string name_of(const fs::path& folder) {
  auto name = folder.filename().string();
  const bool good =
      !name.empty() && name.size() <= 64 && std::isalpha(static_cast<unsigned char>(name[0])) != 0 &&
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; }) &&
      name != "test" && name != "install" && name != "all" && name != "clean" && name != "help" && name != "package";
  if (!good) {
    throw Error(ErrorCode::usage, "troupe new", "'" + displayable(name) + "' is not a valid program name",
                "use letters, digits, _ and -, and begin with a letter");
  }
  return name;
}

std::string for_shell(const fs::path& path) {
  auto text = path.string();
  if (text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+:") ==
      std::string::npos)
    return text;
  return quote_for_shell(text);
}

// In lib or lib/x86_64-linux-gnu, where find_package looks for it.
bool has_cmake_package(const fs::path& prefix) {
  std::error_code error;
  if (fs::exists(prefix / "lib/cmake/troupe", error)) return true;
  for (fs::directory_iterator entry(prefix / "lib", error), end; !error && entry != end; entry.increment(error)) {
    std::error_code unknown;
    if (fs::exists(entry->path() / "cmake/troupe", unknown)) return true;
  }
  return false;
}

}  // namespace

int new_project_command(const std::vector<std::string>& words, const std::string& own_path) {
  if (words.size() == 1 && (words[0] == "--help" || words[0] == "-h")) return print_help(kNewHelp), 0;
  if (words.size() != 1 || words[0].starts_with("-"))
    throw Error(ErrorCode::usage, "troupe new", "it takes one new folder", "troupe new DIR");
  auto folder = fs::absolute(words[0]).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  const auto name = name_of(folder);
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder, error)) &&
      (!fs::is_directory(folder, error) || !fs::is_empty(folder, error))) {
    throw Error(ErrorCode::usage, "troupe new",
                displayable(folder.string()) + " already exists and is not an empty folder",
                "choose another name; nothing was written");
  }
  fs::create_directories(folder, error);
  if (error)
    throw Error(ErrorCode::io, "troupe new", "making " + displayable(folder.string()) + ": " + error.message());
  // bin/troupe of a prefix, or launch/troupe of a build folder, from which a prefix is made in a moment.
  const auto above = fs::path(own_path).parent_path().parent_path();
  const auto digits = above / "share/troupe/digits.csv.gz";
  std::string list;
  for (const auto& file : project_files()) {
    std::ofstream out(folder / file.name, std::ios::binary);
    out << with_digits(named(file.text, name), file.name == "train.toml" ? digits : fs::path());
    out.close();
    if (!out)
      throw Error(ErrorCode::io, "troupe new", "cannot write " + displayable((folder / file.name).string()),
                  "is the disk full?");
    list += (list.empty() ? "" : ", ") + file.name;
  }
  const bool built = is_there(above / "cmake_install.cmake");
  const auto prefix = built ? above / "prefix" : above;
  std::printf("%s: %s\n", folder.c_str(), list.c_str());
  if (!built && !has_cmake_package(prefix)) {
    std::printf(
        "this Troupe has no headers and libraries to build a program against: a wheel does not include them.\n"
        "install the .deb, or build Troupe from source, and run its `troupe new`\n");
    return 0;
  }
  // A package has LibTorch in its own folders, where CMake finds it.
  const std::string torch = is_there(TROUPE_TORCH_PREFIX) ? ";" TROUPE_TORCH_PREFIX : "";
  std::printf("next:\n");
  if (built) std::printf("  cmake --install %s --prefix %s\n", for_shell(above).c_str(), for_shell(prefix).c_str());
  std::printf(
      "  cd %s\n  cmake -G Ninja -B build -DCMAKE_PREFIX_PATH=%s\n  cmake --build build\n  %s launch --nproc 2 "
      "build/%s "
      "--config train.toml\n",
      for_shell(folder).c_str(), for_shell(prefix.string() + torch).c_str(), for_shell(own_path).c_str(), name.c_str());
  return 0;
}

}  // namespace troupe
