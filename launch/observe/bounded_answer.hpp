#pragma once
#include <httplib.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace troupe {

/// Sends a request, and gives up on an answer whose body is longer than `most` bytes: its error is Canceled then.
inline httplib::Result bounded_answer(httplib::Client& client, httplib::Request request, std::size_t most) {
  std::string body;
  request.content_receiver = [&](const char* data, std::size_t bytes, std::uint64_t, std::uint64_t) {
    if (bytes > most - body.size()) return false;
    body.append(data, bytes);
    return true;
  };
  auto result = client.send(request);
  if (result) result->body = std::move(body);
  return result;
}

}  // namespace troupe
