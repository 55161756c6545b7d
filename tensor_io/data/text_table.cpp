#include "tensor_io/data/text_table.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

// What a compressed file may grow to: data sets of images shrink to a fifth, a bomb to a thousandth.
constexpr std::uint64_t kSmall = 64 << 20, kMostTimes = 100;

}  // namespace

std::string read_file(const std::string& path, std::size_t limit) {
  const int fd = ::open(path.c_str(),
                        O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);  // opening a pipe must not wait for its writer
  if (fd < 0)
    throw Error(ErrorCode::unavailable, path, std::string("cannot open it: ") + std::strerror(errno),
                "set data_dir to a file that can be read");
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzdopen(fd, "rb"), gzclose);  // reads plain files too
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
    throw Error(ErrorCode::bad_data, path, "it is no regular file", "set data_dir to a file");
  if (gzdirect(file.get()) == 0) {
    limit = std::min<std::uint64_t>(limit, kSmall + kMostTimes * static_cast<std::uint64_t>(status.st_size));
  }
  std::string content;
  std::string block(1 << 16, '\0');
  for (;;) {
    const int n = gzread(file.get(), block.data(), static_cast<unsigned>(block.size()));
    if (n < 0) {
      int code = 0;
      throw Error(ErrorCode::bad_data, path,
                  "cannot read on after byte " + std::to_string(content.size()) + ": " + gzerror(file.get(), &code),
                  "download or copy it again");
    }
    if (n == 0) break;
    content.append(block, 0, static_cast<std::size_t>(n));
    if (content.size() > limit)
      throw Error(ErrorCode::bad_data, path,
                  "it holds more than " + std::to_string(limit) + " bytes, which is too much for its file",
                  "set data_dir to the right file");
  }
  // gzread ends quietly where a compressed file is cut off.
  int code = Z_OK;
  gzerror(file.get(), &code);
  if (code == Z_BUF_ERROR)
    throw Error(ErrorCode::bad_data, path,
                "the compressed file ends early, after " + std::to_string(content.size()) + " bytes of content",
                "download or copy it again");
  return content;
}

NumberTable parse_csv(const std::string& path, const std::string& text) {
  NumberTable table;
  std::size_t position = 0;
  for (std::int64_t line = 1; position < text.size(); ++line) {
    auto end = text.find('\n', position);
    if (end == std::string::npos) end = text.size();
    std::string_view row(text.data() + position, end - position);
    position = end + 1;
    if (!row.empty() && row.back() == '\r') row.remove_suffix(1);
    if (row.empty()) continue;
    std::vector<double> values;
    std::vector<std::string> words;
    bool numeric = true;
    std::int64_t column = 0;
    for (std::size_t start = 0; start <= row.size(); ++column) {
      auto comma = row.find(',', start);
      if (comma == std::string_view::npos) comma = row.size();
      auto field = row.substr(start, comma - start);
      start = comma + 1;
      while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
      while (!field.empty() && field.back() == ' ') field.remove_suffix(1);
      words.emplace_back(field);
      double value = 0;
      const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
      if (error != std::errc() || stop != field.data() + field.size() || !std::isfinite(value)) {
        if (line > 1 || !table.values.empty()) {
          throw Error(ErrorCode::bad_data, path + ":" + std::to_string(line),
                      "column " + std::to_string(column + 1) + ": '" + std::string(field.substr(0, 40)) +
                          "' is no finite number",
                      "mend the field, or remove the line");
        }
        numeric = false;
      }
      values.push_back(value);
    }
    if (!numeric) {
      table.header = words;
      table.columns = column;
      continue;
    }
    if (table.columns == 0) table.columns = column;
    if (column != table.columns) {
      throw Error(
          ErrorCode::bad_data, path + ":" + std::to_string(line),
          "it has " + std::to_string(column) + " columns, the lines before have " + std::to_string(table.columns),
          "mend or remove the line");
    }
    table.values.insert(table.values.end(), values.begin(), values.end());
    ++table.rows;
  }
  if (table.rows == 0)
    throw Error(ErrorCode::bad_data, path, "it holds no rows", "set data_dir to a CSV file of numbers");
  return table;
}

}  // namespace troupe
