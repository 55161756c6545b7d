#include "launch/run/run_file.hpp"

#include <fstream>
#include <iterator>

namespace troupe {
namespace {

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

nlohmann::json read_json_file(const std::filesystem::path& path) {
  const auto text = read_small(path, 16 << 20);
  return text.empty() ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false);
}

std::string text_of(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace troupe
