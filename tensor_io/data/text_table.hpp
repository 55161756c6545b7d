#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// A whole file, unpacked if it is gzip. Throws Error(unavailable) if it is not there, Error(bad_data) beyond `limit`
/// bytes, if it is torn, or no regular file.
std::string read_file(const std::string& path, std::size_t limit = std::size_t{4} << 30);

/// Numbers in rows and columns.
struct NumberTable {
  std::vector<std::string> header;  // empty where the first line holds numbers
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values;  // row by row
  double at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
};

/// Comma separated numbers, one row a line, the first line may name the columns. Throws Error(bad_data) naming file,
/// line and column.
NumberTable parse_csv(const std::string& path, const std::string& text);

}  // namespace troupe
