#pragma once
#include <chrono>
#include <future>
#include <string>

#include "launch/network/asio.hpp"
#include "launch/network/job_keys.hpp"

namespace troupe {

/// The reason if the other side has keys, and they are not ours: it does not help to try again.
inline constexpr const char* kOtherKeys = "its keys are another job's";
/// Likewise: it takes other messages.
inline constexpr const char* kOtherVersion = "it is of another version of Troupe";

/// Connects to a job's Gate: TLS 1.3 with the job's certificates, and the token proved by both sides. The future's
/// value is a local socket that carries the connection's data; the caller owns it. The future throws
/// Error(unavailable), with the reason, if the other side is not reached, is not the job's, or does not answer within
/// `patience`. Resolves the name here, and does the rest on the thread of `io`.
std::future<int> open_secure_link(asio::io_context& io, const JobKeys& keys, const std::string& host,
                                  std::uint16_t port, std::chrono::milliseconds patience);

}  // namespace troupe
