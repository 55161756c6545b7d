#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace troupe {

/// SHA-256 (FIPS 180-4) of bytes that come in parts.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void add(std::string_view bytes);
  /// Of all added bytes, as 64 hexadecimal digits; once.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe
