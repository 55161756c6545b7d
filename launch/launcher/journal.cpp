#include "launch/launcher/journal.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <caf/all.hpp>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "actors/messages/messages.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/files/file_layer.hpp"
#include "tensor_io/files/xxh3.hpp"

namespace troupe {

namespace {

constexpr char kMagic[8] = {'T', 'R', 'J', 'L', 2, 0, 0, 0};
constexpr std::uint32_t kStarted = 1, kMembership = 2;
constexpr std::size_t kHead = 8, kHash = 8;
constexpr std::size_t kMaxRecord = 64 << 20, kMaxFile = 1 << 30;

template <class T>
std::string pack(T object) {
  std::vector<char> bytes;
  caf::binary_serializer sink(nullptr, bytes);
  if (const auto error = sink(object)) throw Error(ErrorCode::internal, "journal", caf::to_string(error));
  return {bytes.begin(), bytes.end()};
}

// A size that is written there is believed only as far as there are bytes.
template <class T>
T unpack(const std::string& bytes, const std::string& where) {
  caf::binary_deserializer source(nullptr, bytes.data(), bytes.size());
  T object;
  if (const auto error = source(object))
    throw Error(ErrorCode::bad_data, where, "it can't be read: " + caf::to_string(error),
                "start the job again with --resume auto");
  return object;
}

}  // namespace

Journal::Journal(std::string path, const std::string& job_id)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
  if (fd_ < 0) throw Error(ErrorCode::io, path_, io_cause(errno), "choose another --run-dir");
  try {
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0)
      throw Error(ErrorCode::unavailable, path_, "another coordinator holds this journal",
                  "stop that one first: a job has one coordinator");
    std::string text;
    char block[1 << 16];
    for (ssize_t n = 0; (n = ::pread(fd_, block, sizeof block, static_cast<off_t>(text.size()))) > 0;) {
      text.append(block, static_cast<std::size_t>(n));
      if (text.size() > kMaxFile) throw Error(ErrorCode::bad_data, path_, "it is too long for a journal", "remove it");
    }
    std::size_t at = sizeof kMagic;
    is_new_ = text.size() < sizeof kMagic;  // new, torn in its first write, or emptied
    if (is_new_) {
      if (::ftruncate(fd_, 0) != 0 || ::write(fd_, kMagic, sizeof kMagic) != sizeof kMagic)
        throw Error(ErrorCode::io, path_, std::strerror(errno));
    } else if (std::memcmp(text.data(), kMagic, sizeof kMagic) != 0) {
      throw Error(ErrorCode::bad_data, path_, "it is not a journal of this version (offset 0)",
                  "choose another --run-dir");
    }
    while (text.size() >= at + kHead) {
      std::uint32_t length = 0, type = 0;
      std::memcpy(&length, text.data() + at, sizeof length);
      std::memcpy(&type, text.data() + at + 4, sizeof type);
      if (length > kMaxRecord)
        throw Error(ErrorCode::bad_data, path_,
                    "a record of " + std::to_string(length) + " bytes at offset " + std::to_string(at));
      if (text.size() < at + kHead + length + kHash) break;  // torn
      std::uint64_t hash = 0;
      std::memcpy(&hash, text.data() + at + kHead + length, sizeof hash);
      if (xxh3(std::string_view(text).substr(at, kHead + length)) != hash) {
        if (text.size() == at + kHead + length + kHash) break;  // the last write did not reach the disk whole
        throw Error(ErrorCode::bad_data, path_, "a damaged record at offset " + std::to_string(at),
                    "start the job again with --resume auto");
      }
      const auto payload = text.substr(at + kHead, length);
      const auto where = path_ + ", record at offset " + std::to_string(at);
      if (type == kStarted) {
        if (const auto job = unpack<std::string>(payload, where); job != job_id)
          throw Error(ErrorCode::mismatch, path_, "it belongs to job " + job + ", and this is job " + job_id,
                      "choose another --run-dir");
      } else if (type == kMembership) {
        last_ = unpack<Membership>(payload, where);
      }
      at += kHead + length + kHash;
    }
    if (::ftruncate(fd_, static_cast<off_t>(at)) != 0) throw Error(ErrorCode::io, path_, std::strerror(errno));
    ::lseek(fd_, static_cast<off_t>(at), SEEK_SET);
    fault_point("journal", 0);
    append_record(kStarted, pack(job_id));
    fault_point("journalled", 0);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

Journal::~Journal() { ::close(fd_); }

void Journal::append(const Membership& membership) {
  const auto generation = static_cast<std::int64_t>(membership.generation);
  fault_point("journal", generation);
  try {
    if (::lseek(fd_, 0, SEEK_CUR) == 0 && ::write(fd_, kMagic, sizeof kMagic) != sizeof kMagic)  // emptied before
      throw Error(ErrorCode::io, path_, std::strerror(errno));
    append_record(kMembership, pack(membership));
  } catch (const Error&) {
    [[maybe_unused]] const int emptied = ::ftruncate(fd_, 0);
    ::lseek(fd_, 0, SEEK_SET);
    throw;
  }
  fault_point("journalled", generation);
  last_ = membership;
}

void Journal::append_record(std::uint32_t type, const std::string& payload) {
  std::string record(kHead, '\0');
  const auto length = static_cast<std::uint32_t>(payload.size());
  std::memcpy(record.data(), &length, sizeof length);
  std::memcpy(record.data() + 4, &type, sizeof type);
  record += payload;
  const auto hash = xxh3(record);
  record.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  for (std::size_t done = 0; done < record.size();) {
    const auto n = ::write(fd_, record.data() + done, record.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Error(ErrorCode::io, path_, std::strerror(errno), "make room, or choose another --run-dir");
    done += static_cast<std::size_t>(n);
  }
  if (::fdatasync(fd_) != 0) throw Error(ErrorCode::io, path_, std::strerror(errno));
}

}  // namespace troupe
