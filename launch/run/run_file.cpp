#include "launch/run/run_file.hpp"

#include <cstdio>
#include <fstream>
#include <iterator>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/manifest.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {
namespace {

constexpr std::uint64_t kMostLock = 4096;

std::string read_small(const std::filesystem::path& path, std::uintmax_t most) {
  std::error_code failure;
  if (!std::filesystem::is_regular_file(path, failure) || std::filesystem::file_size(path, failure) > most) return {};
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string read_run_json(const std::string& folder) {
  const auto path = std::filesystem::path(folder) / "run.json";
  std::error_code failure;
  return std::filesystem::is_symlink(path, failure) ? std::string() : read_small(path, 1 << 20);
}

nlohmann::json run_facts(const std::string& folder) {
  const auto text = read_run_json(folder);
  return text.empty() ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false);
}

std::optional<int> noted_exit(const std::string& folder) try {
  const auto text = BoundedFile("reading a run's end", folder + "/lock").read_all(kMostLock);
  unsigned code = 0;
  const auto line = text.find('\n');
  return line != std::string::npos && std::sscanf(text.c_str() + line, "\nexit code %3u", &code) == 1
             ? std::optional(static_cast<int>(code))
             : std::nullopt;
} catch (const Error&) {
  return std::nullopt;
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
  const auto text = read_small(path, Manifest::kMaxBytes);
  return text.empty() ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false);
}

std::string text_of(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace troupe
