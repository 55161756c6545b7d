#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// A whole file, unpacked if it is gzip, of one member or several. Throws Error(unavailable) if it is not there,
/// Error(bad_data) beyond `limit` bytes, if it is torn, if something else lies behind its members, or if it is no
/// regular file.
std::string read_file(const std::string& path, std::size_t limit = std::size_t{4} << 30);

/// Numbers in rows and columns.
struct NumberTable {
  std::vector<std::string> header;  ///< the columns' names; empty: the file has none
  std::int64_t rows = 0, columns = 0, comments = 0;
  std::vector<double> values;       ///< row by row
  std::vector<std::int64_t> lines;  ///< of each row, the line that it begins at, from 1
  double at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
  /// "column 3 (height)", of column 2.
  std::string column_name(std::int64_t column) const;
};

/// Comma separated numbers, read as pandas.read_csv reads them, or refused (docs/data.md has the rules). All of them
/// fit a float. Throws Error(bad_data) naming file, line and column.
NumberTable parse_csv(const std::string& path, const std::string& text);

}  // namespace troupe
