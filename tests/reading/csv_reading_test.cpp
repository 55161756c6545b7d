#include <ATen/Functions.h>

#include "tensor_io/data/text_table.hpp"
#include "tests/catch.hpp"
#include "tests/reading/reading_cases.hpp"

using namespace troupe;

TEST_CASE("[D1] CSV files are read as pandas reads them, or refused by line and column", "[reading]") {
  testing::check_reading("csv", [](const std::string& folder, const testing::ReadingCase&) -> NamedTensors {
    const auto path = folder + "/a.csv";
    const auto table = parse_csv(path, read_file(path));
    return {{"rows", at::tensor(table.values, at::kDouble).view({table.rows, table.columns})}};
  });
}
