#include "tensor_io/base/error.hpp"

#include <catch2/catch.hpp>

using namespace troupe;

TEST_CASE("[T05] an error is one line, whatever text of others is in it") {
  const Error error(ErrorCode::bad_data, "rows.csv:2", "text stands behind '\n\x1b[2J\t" + std::string(1, '\0') + "é'",
                    "mend the quotes");
  CHECK(std::string(error.what()) == "rows.csv:2: text stands behind '\\n\\x1b[2J\\t\\x00é'; mend the quotes");
  const Error longer(ErrorCode::bad_data, "journal", "it is of job " + std::string(50'000, 'j'), "give the job's own");
  CHECK(std::string(longer.what()).size() < 2100);
  CHECK(std::string(longer.what()).ends_with("jjj... (50013 bytes); give the job's own"));
  CHECK(error.report().cause.size() == error.report().cause.find("é'") + 3);  // the report has it as it came
}
