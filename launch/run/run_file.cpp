#include "launch/run/run_file.hpp"

#include <fstream>
#include <iterator>

namespace troupe {
namespace {

std::string read_small(const std::filesystem::path& path) {
  constexpr std::uintmax_t kLargest = 16 << 20;
  std::error_code failure;
  if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path, failure)) ||
      std::filesystem::file_size(path, failure) > kLargest)
    return {};
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string read_run_json(const std::string& folder) { return read_small(std::filesystem::path(folder) / "run.json"); }

nlohmann::json run_facts(const std::string& folder) {
  return read_json_file(std::filesystem::path(folder) / "run.json");
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
  const auto text = read_small(path);
  return text.empty() ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false);
}

std::string text_of(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace troupe
