#include "launch/network/join_proof.hpp"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <cstring>

#include "tensor_io/base/error.hpp"

namespace troupe {

std::string join_proof(TlsStream& stream, const std::string& token, bool by_server) {
  static constexpr char kLabel[] = "EXPORTER-troupe-join";
  std::array<unsigned char, 32> secret{};
  if (SSL_export_keying_material(stream.native_handle(), secret.data(), secret.size(), kLabel, std::strlen(kLabel),
                                 nullptr, 0, 0) != 1)
    throw Error(ErrorCode::internal, "TLS", "the connection's secret cannot be had");
  return hmac_text(token, (by_server ? "server " : "client ") + std::string(secret.begin(), secret.end()));
}

asio::ssl::context tls_context(const JobKeys& keys, bool server) {
  try {
    asio::ssl::context context(server ? asio::ssl::context::tls_server : asio::ssl::context::tls_client);
    SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_3_VERSION);
    SSL_CTX_set_num_tickets(context.native_handle(), 0);
    SSL_CTX_set_session_cache_mode(context.native_handle(), SSL_SESS_CACHE_OFF);
    // Dates are looked at before a job begins (KeyFolder::require_dates), and not while it runs.
    X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context.native_handle()), X509_V_FLAG_NO_CHECK_TIME);
    context.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
    context.add_certificate_authority(asio::buffer(keys.authority));
    context.use_certificate(asio::buffer(keys.certificate), asio::ssl::context::pem);
    context.use_private_key(asio::buffer(keys.key), asio::ssl::context::pem);
    return context;
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::bad_data, "the job's keys", error.code().message(), "make new ones: troupe keys DIR");
  }
}

void set_up(asio::ip::tcp::socket& socket) {
  std::error_code ignored;
  ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
}

std::string why(const std::error_code& failure) {
  if (failure == asio::error::eof || failure == asio::ssl::error::stream_truncated) return "the connection ended";
  if (failure.category() != asio::error::get_ssl_category()) return failure.message();
  switch (ERR_GET_REASON(static_cast<unsigned long>(failure.value()))) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE: return "no certificate";
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_BAD_PROTOCOL_VERSION_NUMBER:
    case SSL_R_VERSION_TOO_LOW: return "no TLS 1.3";
    default: return "a broken TLS handshake";
  }
}

}  // namespace troupe
