#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "launch/hosts/host_list.hpp"
#include "launch/process/displayable.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

std::vector<Host> read_host_file(const std::string& path) {
  if (path.empty())
    throw Error(ErrorCode::usage, "host file", "its name is empty", "name a file, one host on each line");
  if (path.find('\0') != std::string::npos)
    throw Error(ErrorCode::usage, "host file '" + displayable(path) + "'", "its name has a NUL byte");
  const auto shown = displayable(path, 200);
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)};
  if (file.fd < 0)
    throw Error(ErrorCode::usage, shown, std::string("cannot be read: ") + std::strerror(errno),
                "name a readable host file");
  struct stat status {};
  if (::fstat(file.fd, &status) != 0)
    throw Error(ErrorCode::usage, shown, std::strerror(errno), "name a readable host file");
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::usage, shown, S_ISDIR(status.st_mode) ? "is a folder" : "is a pipe or a device, not a file",
                "name a regular file, one host on each line");
  }
  std::string text;
  char block[1 << 16];
  while (text.size() <= kMaxHostFileBytes) {  // one byte too many is enough for the refusal
    const auto n = ::read(file.fd, block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw Error(ErrorCode::usage, shown, std::string("cannot be read: ") + std::strerror(errno),
                  "name a readable host file");
    if (n == 0) break;
    text.append(block, static_cast<std::size_t>(n));
  }
  if (text.size() > kMaxHostFileBytes) {
    throw Error(ErrorCode::usage, shown, "it has more than " + std::to_string(kMaxHostFileBytes) + " bytes",
                "name a host file, one host on each line");
  }
  return parse_host_list(text, shown);
}

}  // namespace troupe
