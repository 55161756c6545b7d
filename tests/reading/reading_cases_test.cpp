#include "tests/reading/reading_cases.hpp"

#include <filesystem>
#include <set>
#include <string>

#include "tests/catch.hpp"

using namespace troupe;

TEST_CASE("each file of cases has a test that reads it, and its cases bear different names", "[reading]") {
  for (const auto& entry : std::filesystem::directory_iterator(TROUPE_SOURCE_DIR "/tests/reading/cases")) {
    const auto reader = entry.path().stem().string();
    CAPTURE(reader);
    CHECK(std::filesystem::exists(TROUPE_SOURCE_DIR "/tests/reading/" + reader + "_reading_test.cpp"));
    std::set<std::string> names;
    for (const auto& one : testing::reading_cases(reader)) CHECK(names.insert(one.name).second);
  }
}
