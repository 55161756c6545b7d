#pragma once
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/support/running_process.hpp"

namespace troupe::testing {

/// The Python of ./dev observe, with TensorBoard and MLflow; without it the test says so.
inline std::optional<std::string> observe_python() {
  if (const char* python = std::getenv("TROUPE_OBSERVE_PYTHON")) return python;
  WARN("SKIPPED: TROUPE_OBSERVE_PYTHON names no Python with TensorBoard and MLflow; ./dev observe has one");
  return std::nullopt;
}

/// What a script of tests/python prints in its last line; nothing where it exits with 77, for want of a package.
inline std::optional<nlohmann::json> run_python(const std::string& python, const std::string& script,
                                                const std::vector<std::string>& arguments) {
  std::vector<std::string> words{python, TROUPE_SOURCE_DIR "/tests/python/" + script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  RunningProcess process(words);
  const auto done = process.finish();
  INFO(done.output);
  if (done.code == 77) {
    WARN(done.output);
    return std::nullopt;
  }
  REQUIRE(done.code == 0);
  const auto end = done.output.find_last_not_of('\n');
  const auto begin = done.output.rfind('\n', end);
  return nlohmann::json::parse(done.output.substr(begin == std::string::npos ? 0 : begin + 1));
}

}  // namespace troupe::testing
