#include "launch/run/run_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

constexpr std::size_t kLongest = 4096;
constexpr std::chrono::milliseconds kAsks{200}, kAnswers{5000};

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

Address address_of(const std::string& folder) {
  struct stat facts {};
  if (::stat(folder.c_str(), &facts) != 0) throw Error(ErrorCode::unavailable, folder, std::strerror(errno));
  const auto text = "troupe-run-" + std::to_string(facts.st_dev) + "-" + std::to_string(facts.st_ino);
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, text.data(), text.size());  // behind a zero: no file
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

int make_socket() {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw Error(ErrorCode::unavailable, "the run's socket", std::strerror(errno));
  return fd;
}

void set_patience(int fd, std::chrono::milliseconds patience) {
  const timeval time{patience.count() / 1000, (patience.count() % 1000) * 1000};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

bool is_allowed(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == ::geteuid() || peer.uid == 0);
}

/// Up to the end of a line; empty: none came.
std::string read_line(int fd, std::chrono::milliseconds patience) {
  std::string line;
  char byte = 0;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (line.size() < kLongest && std::chrono::steady_clock::now() < deadline && ::recv(fd, &byte, 1, 0) == 1) {
    if (byte == '\n') return line;
    line += byte;
  }
  return {};
}

void write_line(int fd, const std::string& line) {
  const auto text = line + "\n";
  [[maybe_unused]] const auto sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
}

int listen_for(const std::string& folder) {
  const auto address = address_of(folder);
  const int fd = make_socket();
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address.name), address.length) == 0 && ::listen(fd, 8) == 0)
    return fd;
  const int why = errno;
  ::close(fd);
  throw Error(ErrorCode::unavailable, "the socket of run " + folder, std::strerror(why));
}

}  // namespace

RunSocket::RunSocket(const std::string& folder) : fd_(listen_for(folder)) {}

RunSocket::~RunSocket() { ::close(fd_); }

void RunSocket::step(const std::function<std::string(const std::string&)>& answer) {
  const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return;
  set_patience(fd, kAsks);
  if (is_allowed(fd)) {
    if (const auto line = read_line(fd, kAsks); !line.empty()) write_line(fd, answer(line));
  }
  ::close(fd);
}

std::string ask_run(const std::string& folder, const std::string& line) {
  const auto address = address_of(folder);
  const int fd = make_socket();
  set_patience(fd, kAnswers);
  std::string answer;
  const bool connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&address.name), address.length) == 0;
  // The name is anybody's to take.
  const bool trusted = connected && is_allowed(fd);
  if (trusted) {
    write_line(fd, line);
    answer = read_line(fd, kAnswers);
  }
  ::close(fd);
  if (trusted && answer.empty())
    throw Error(ErrorCode::timeout, folder, "the run's launcher did not answer within 5 s");
  return answer;
}

}  // namespace troupe
