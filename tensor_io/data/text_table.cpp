#include "tensor_io/data/text_table.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/number_of.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {
namespace {

// What a compressed file may grow to: data sets of images shrink to a fifth, a bomb to a thousandth.
constexpr std::uint64_t kSmall = 64 << 20, kMostTimes = 100;
constexpr const char* kAgain = "download or copy it again";

[[noreturn]] void refuse_size(const std::string& path, std::uint64_t limit) {
  throw Error(ErrorCode::bad_data, path,
              "it holds more than " + std::to_string(limit) + " bytes, which is too much for its file",
              "set data_dir to the right file");
}

std::string read_bytes(const std::string& path, std::size_t limit) {
  const int fd = ::open(path.c_str(),
                        O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);  // opening a pipe must not wait for its writer
  if (fd < 0)
    throw Error(ErrorCode::unavailable, path, std::string("cannot open it: ") + std::strerror(errno),
                "set data_dir to a file that can be read");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(::fdopen(fd, "rb"), std::fclose);
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
    throw Error(ErrorCode::bad_data, path, "it is not a regular file", "set data_dir to a file");
  if (static_cast<std::uint64_t>(status.st_size) > limit) refuse_size(path, limit);
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  content.resize(std::fread(content.data(), 1, content.size(), file.get()));
  if (std::ferror(file.get()) != 0)
    throw Error(ErrorCode::io, path, "cannot read on after byte " + std::to_string(content.size()), kAgain);
  return content;
}

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

// gzip's own rule, and Python's: members, one behind the other, then zeros at most. zlib's gzread would pass over what
// follows without a word.
std::string unpack(const std::string& path, const std::string& packed, std::uint64_t limit) {
  z_stream stream{};
  if (::inflateInit2(&stream, 15 + 16) != Z_OK)  // 32 KiB, gzip alone
    throw Error(ErrorCode::internal, path, "zlib does not start");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> ended(&stream, ::inflateEnd);
  std::string content, block(1 << 16, '\0');
  std::size_t taken = 0;
  for (int code = Z_OK; taken < packed.size() || code != Z_STREAM_END;) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + taken));
    stream.avail_in = static_cast<uInt>(std::min<std::size_t>(packed.size() - taken, 1 << 30));
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    code = ::inflate(&stream, Z_NO_FLUSH);
    taken = static_cast<std::size_t>(reinterpret_cast<const char*>(stream.next_in) - packed.data());
    content.append(block, 0, block.size() - stream.avail_out);
    if (content.size() > limit) refuse_size(path, limit);
    if (code == Z_BUF_ERROR)
      throw Error(ErrorCode::bad_data, path,
                  "the compressed file ends early, after " + std::to_string(content.size()) + " bytes of content",
                  kAgain);
    if (code != Z_OK && code != Z_STREAM_END)
      throw Error(ErrorCode::bad_data, path,
                  "cannot read on after byte " + std::to_string(content.size()) + ": " +
                      (stream.msg != nullptr ? stream.msg : "no gzip data"),
                  kAgain);
    if (code != Z_STREAM_END) continue;
    taken = std::min(packed.find_first_not_of('\0', taken), packed.size());
    if (taken < packed.size() && !is_gzip(std::string_view(packed).substr(taken)))
      throw Error(ErrorCode::bad_data, path,
                  "offset " + std::to_string(taken) + ": after its compressed part come " +
                      std::to_string(packed.size() - taken) + " bytes that are not compressed",
                  "unpack the first part, append the rest, and pack all of it");
    ::inflateReset(&stream);
  }
  return content;
}

struct Field {
  std::string text;  // without quotes, and without blanks around it
  bool quoted = false;
};
using Fields = std::vector<Field>;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\v' || c == '\f'; }

std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// The rows of a text, field by field. Lines end in LF, CR LF or CR; empty ones are passed over, and so are those that
/// begin with '#'.
class Rows {
 public:
  Rows(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  /// False: there is no other.
  bool next(Fields& fields) {
    while (pass_over()) {
    }
    if (at_ == text_.size()) return false;
    began_ = line_;
    std::size_t count = 0;
    do {
      if (fields.size() == count) fields.emplace_back();
      read_field(fields[count++]);
    } while (take(','));
    fields.resize(count);
    end_line();
    return true;
  }
  std::int64_t line() const noexcept { return began_; }  ///< where the last row began
  std::int64_t comments() const noexcept { return comments_; }

  [[noreturn]] void refuse(std::int64_t line, const std::string& cause, const std::string& remedy) const {
    throw Error(ErrorCode::bad_data, path_ + ":" + std::to_string(line), cause, remedy);
  }

 private:
  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void end_line() {
    const bool ended = take('\r');
    if (take('\n') || ended) ++line_;
  }
  bool pass_over() {  // a line that is no row
    const auto end = std::min(text_.find_first_of("\r\n", at_), text_.size());
    const auto line = stripped(text_.substr(at_, end - at_));
    if (at_ == text_.size() || (!line.empty() && line.front() != '#')) return false;
    comments_ += line.empty() ? 0 : 1;
    at_ = end;
    end_line();
    return true;
  }
  void read_field(Field& field) {
    field.quoted = take('"');
    if (field.quoted) return read_quoted(field.text);
    const auto end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
    field.text = stripped(text_.substr(at_, end - at_));
    at_ = end;
  }
  void read_quoted(std::string& out) {
    const auto opened = line_;
    out.clear();
    do {
      const auto end = text_.find('"', at_);
      if (end == std::string_view::npos) refuse(opened, "a quote opens and is not closed", "close it, or remove it");
      const auto part = text_.substr(at_, end - at_);
      for (std::size_t i = 0; i < part.size(); ++i)
        line_ += part[i] == '\n' || (part[i] == '\r' && (i + 1 == part.size() || part[i + 1] != '\n')) ? 1 : 0;
      out += part;
      at_ = end + 1;
      if (at_ < text_.size() && text_[at_] == '"') out += '"';
    } while (take('"'));
    out = std::string(stripped(out));
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
    if (at_ < text_.size() && std::string_view(",\r\n").find(text_[at_]) == std::string_view::npos)
      refuse(line_, "text follows the closing quote of '" + out.substr(0, 40) + "'", "fix the quotes");
  }

  const std::string& path_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1, began_ = 1, comments_ = 0;
};

/// A decimal number as pandas reads one; nothing for words, nan, inf, hexadecimal digits and what no float can hold.
std::optional<double> number(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  if (text.empty() || text.find_first_not_of("0123456789+-.eE") != std::string_view::npos) return std::nullopt;
  const auto value = number_of<double>(text);
  return value && std::abs(*value) <= std::numeric_limits<float>::max() ? value : std::nullopt;
}

/// What pandas takes for a missing value, and what it reads as infinite.
bool is_missing(std::string_view text) {
  static const std::string_view words[] = {"",     "#N/A",   "#N/A N/A", "#NA",  "-1.#IND", "-1.#QNAN", "-NaN",
                                           "-nan", "1.#IND", "1.#QNAN",  "<NA>", "N/A",     "NA",       "NULL",
                                           "NaN",  "None",   "n/a",      "nan",  "null"};
  if (std::find(std::begin(words), std::end(words), text) != std::end(words)) return true;
  std::string word(text.substr(text.starts_with('-') || text.starts_with('+') ? 1 : 0));
  std::transform(word.begin(), word.end(), word.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return word == "inf" || word == "infinity";
}

std::string no_number(const Field& field) {
  if (field.text.empty()) return "it is empty";
  return printable(field.text.substr(0, 40)) +
         (is_missing(field.text) ? " is a missing or infinite value" : " is not a finite number");
}

bool counts(const Fields& fields, int from) {
  for (const auto& field : fields) {
    if (field.text != std::to_string(from++)) return false;
  }
  return fields.size() > 2;
}

constexpr const char* kMendHeader =
    "if it is a row, fix it; if it names the columns, let no name be a number or empty, or remove the line";

/// Whether a file's first row names the columns. It does if (nearly) no field is a number, and it is a row if each is
/// one. All else is refused.
bool is_header(const Rows& rows, const Fields& fields) {
  const auto is_number = [](const Field& field) { return number(field.text).has_value(); };
  const auto numbers = static_cast<std::size_t>(std::count_if(fields.begin(), fields.end(), is_number));
  if (numbers == fields.size()) {
    if (counts(fields, 0) || counts(fields, 1))
      rows.refuse(rows.line(),
                  "its fields count " + fields[0].text + ", " + fields[1].text + ", " + fields[2].text +
                      " ...: is it a row, or are these the names of the columns?",
                  "if they are names, remove the line; if it is a row, put a line with names before it");
    return false;
  }
  const auto word = std::find_if(fields.begin(), fields.end(),
                                 [&](const auto& field) { return !is_number(field) && !is_missing(field.text); });
  const auto wrong = word != fields.end() ? word : std::find_if_not(fields.begin(), fields.end(), is_number);
  const auto place = [&](auto field) { return "column " + std::to_string(field - fields.begin() + 1); };
  if (word == fields.end() || numbers * 10 > fields.size()) {
    const auto first = std::find_if(fields.begin(), fields.end(), is_number);
    rows.refuse(rows.line(),
                place(wrong) + ": " + no_number(*wrong) +
                    (first == fields.end() ? "" : ", while " + place(first) + " is '" + first->text + "'") +
                    ": neither a row of numbers nor a line of names",
                kMendHeader);
  }
  const auto nameless =
      std::find_if(fields.begin(), fields.end(), [](const auto& field) { return field.text.empty(); });
  if (nameless != fields.end())
    rows.refuse(rows.line(), place(nameless) + " has no name: is it the index that pandas writes?",
                "write the file with index=False, or give the column a name");
  if (fields.size() == 1 && word->text.find_first_of(";\t|") != std::string::npos)
    rows.refuse(rows.line(), "its columns are not separated by commas", "separate them by commas");
  return true;
}

}  // namespace

std::string read_file(const std::string& path, std::size_t limit) {
  auto bytes = read_bytes(path, limit);
  if (!is_gzip(bytes)) return bytes;
  return unpack(path, bytes, std::min<std::uint64_t>(limit, kSmall + kMostTimes * bytes.size()));
}

std::string NumberTable::column_name(std::int64_t column) const {
  const auto text = "column " + std::to_string(column + 1);
  return header.empty() ? text : text + " (" + printable(header[static_cast<std::size_t>(column)]) + ")";
}

NumberTable parse_csv(const std::string& path, const std::string& text) {
  std::string_view rest = text;
  if (const auto kind = foreign_format(std::as_bytes(std::span(text).first(std::min<std::size_t>(text.size(), 512))));
      !kind.empty())
    throw Error(ErrorCode::bad_data, path, "it " + kind, "set data_dir to a CSV file, plain or gzip");
  if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);
  if (const auto nul = text.find('\0');
      nul != std::string::npos || rest.starts_with("\xff\xfe") || rest.starts_with("\xfe\xff"))
    throw Error(
        ErrorCode::bad_data,
        path + ":" +
            std::to_string(
                1 + std::count(text.begin(),
                               text.begin() + static_cast<std::ptrdiff_t>(nul == std::string::npos ? 0 : nul), '\n')),
        "it is not UTF-8: " + (nul == std::string::npos ? "it begins as UTF-16 does"
                                                        : "offset " + std::to_string(nul) +
                                                              " holds a NUL byte, as UTF-16 and binary files do"),
        "save it as UTF-8 (iconv -f UTF-16 -t UTF-8)");
  NumberTable table;
  Rows rows(path, rest);
  Fields fields;
  bool first = true, all_quoted = false;
  while (rows.next(fields)) {
    const auto columns = static_cast<std::int64_t>(fields.size());
    const auto is_quoted = [](const auto& field) { return field.quoted; };
    if (std::exchange(first, false)) {
      table.columns = columns;
      all_quoted = std::all_of(fields.begin(), fields.end(), is_quoted);
      if (is_header(rows, fields)) {
        for (const auto& field : fields) table.header.push_back(field.text);
        continue;
      }
    }
    if (columns != table.columns)
      rows.refuse(
          rows.line(),
          "it has " + std::to_string(columns) + " columns, the lines before have " + std::to_string(table.columns),
          fields.back().text.empty() ? "remove the comma at its end" : "fix or remove the line");
    if (table.rows == 1 && table.header.empty() && all_quoted && std::none_of(fields.begin(), fields.end(), is_quoted))
      rows.refuse(
          table.lines[0],
          "its numbers are quoted, those of the next line are not: is it a row, or are these the names of the columns?",
          "if it is a row, remove the quotes; if it names the columns, remove the line");
    for (std::int64_t column = 0; column < columns; ++column) {
      const auto& field = fields[static_cast<std::size_t>(column)];
      const auto value = number(field.text);
      if (!value)
        rows.refuse(rows.line(), table.column_name(column) + ": " + no_number(field),
                    field.text.find_first_of(";\t|") != std::string::npos
                        ? "separate the columns by commas"
                        : "write it as 12, -3.5 or 1e-3 and a class as its number from 0, or remove the line");
      table.values.push_back(*value);
    }
    table.lines.push_back(rows.line());
    ++table.rows;
  }
  table.comments = rows.comments();
  if (table.rows == 0)
    throw Error(ErrorCode::bad_data, path, "it holds no rows", "set data_dir to a CSV file of numbers");
  return table;
}

}  // namespace troupe
