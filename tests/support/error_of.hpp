#pragma once
#include <functional>
#include <string>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

namespace troupe::testing {

/// The text of the error that `call` ends with, whose code is checked; "no error" if it ends without.
inline std::string error_of(ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "no error";
}

}  // namespace troupe::testing
