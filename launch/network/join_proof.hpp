#pragma once
#include <string>

#include "launch/network/asio.hpp"
#include "launch/network/job_keys.hpp"

namespace troupe {

using TlsStream = asio::ssl::stream<asio::ip::tcp::socket>;

constexpr std::size_t kProofLength = 64;

/// Each side of a connection sends this first inside TLS: HMAC-SHA256 of the connection's own secret (RFC 5705, RFC
/// 8446 section 7.5) with the job's token. It is worthless on any other connection, so it can't be replayed. Throws
/// Error(internal).
std::string join_proof(TlsStream& stream, const std::string& token, bool by_server);

/// TLS 1.3 with certificates on both sides, no tickets. Throws Error(bad_data) for keys that OpenSSL does not accept.
asio::ssl::context tls_context(const JobKeys& keys, bool server);

/// A connection between hosts: small messages leave at once, a host that is gone is noticed, child processes do not
/// inherit it.
void set_up(asio::ip::tcp::socket& socket);

/// For an operation of asio that failed, in a few words.
std::string why(const std::error_code& failure);

}  // namespace troupe
