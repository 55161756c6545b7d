#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tensor_io/base/error.hpp"

namespace troupe {

/// Bounds of JSON that is accepted.
struct JsonLimits {
  std::size_t depth = 8;           ///< of nesting
  std::size_t keys = 600'000;      ///< of all objects together; about 100 bytes of memory each
  std::size_t values = 2'000'000;  ///< keys, numbers, strings, brackets; about 16 bytes of memory each
};

/// Parses text out of an untrusted file: strict JSON, valid UTF-8, every key once. Throws Error(bad_data). Its
/// operation is `where` (the purpose, and the file's name), and its cause names the offset: within `text`, plus
/// `text_offset`, the place of `text` in the file.
nlohmann::json parse_bounded_json(std::string_view text, const std::string& where, const JsonLimits& limits,
                                  std::size_t text_offset = 0);

/// The result of `read` on the JSON of `text`, which another rank sent. Throws Error(bad_data) whose operation is
/// `where`, also if `read` finds a value missing (take values with at()) or of another type.
template <class Read>
auto read_bounded_json(std::string_view text, const std::string& where, const JsonLimits& limits, Read read) {
  const nlohmann::json json = parse_bounded_json(text, where, limits);
  try {
    return read(json);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::bad_data, where, error.what());
  }
}

}  // namespace troupe
