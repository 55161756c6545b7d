#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

namespace troupe {

/// The measures of a connection from this host to another.
struct LinkMeasure {
  std::chrono::nanoseconds round_trip{};  ///< median of small messages
  double bytes_per_second = 0;
};

/// Answers measurements on one address until it is destroyed. A visitor must first send the token, within 5 s, and
/// leave within 90 s; its data is counted and thrown away. At most 64 visitors are served side by side: the oldest of
/// those without the token makes place for a new one. Its thread owns the socket.
class TcpProbeServer {
 public:
  /// `address` is a name or an address of this host. Throws Error(unavailable).
  explicit TcpProbeServer(const std::string& address);
  ~TcpProbeServer();
  TcpProbeServer(const TcpProbeServer&) = delete;
  TcpProbeServer& operator=(const TcpProbeServer&) = delete;

  std::uint16_t port() const noexcept { return port_; }
  const std::string& token() const noexcept { return token_; }  ///< 32 hexadecimal digits

 private:
  void serve() const;

  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::string token_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// Measures the way to a TcpProbeServer for about `duration` (at most 60 s). Throws Error(unavailable).
LinkMeasure measure_link(const std::string& address, std::uint16_t port, const std::string& token,
                         std::chrono::milliseconds duration);

}  // namespace troupe
