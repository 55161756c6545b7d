#pragma once
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

namespace troupe {

/// A process's proof that it belongs to a job: a certificate of the job's own authority with its key, and the job's
/// token. PEM texts; the token is 64 hexadecimal digits. Their owner may do all that a rank may. So they go over ssh's
/// standard input, never onto a command line or into an environment.
struct JobKeys {
  std::string authority;    ///< certificate; the same for all
  std::string certificate;  ///< this host's
  std::string key;          ///< its private key
  std::string token;        ///< the same for all

  /// One text for a pipe, and back. Throws Error(bad_data) for anything else.
  std::string to_text() const;
  static JobKeys from_text(std::string_view text);
  /// `to_text` as a line, and back: reads not a byte more, and waits for 30 s. Throws Error(bad_data).
  std::string framed() const;
  static JobKeys read_framed(int fd);
};

/// A job's own certificate authority (P-256). Its key never leaves this process. One thread.
class KeyMaker {
 public:
  /// Throws Error(internal) if OpenSSL refuses.
  KeyMaker();
  ~KeyMaker();
  KeyMaker(const KeyMaker&) = delete;
  KeyMaker& operator=(const KeyMaker&) = delete;

  /// For one host: the certificate's text is for human readers, the authority alone decides. Dated a week from `now`,
  /// seconds since 1970: a job may begin with them until then (require_dates). Connections of a job that has begun
  /// check no date, so that a long job goes on, also if the clock is set.
  JobKeys keys_for(const std::string& host) const { return keys_for(host, std::time(nullptr)); }
  JobKeys keys_for(const std::string& host, std::time_t now) const;

 private:
  struct State;
  State* state_;
};

/// The keys as files for the processes that this one starts: a folder of mode 0700, gone with this object. One owner.
class KeyFolder {
 public:
  /// In TMPDIR. Throws Error(io).
  explicit KeyFolder(JobKeys keys);
  ~KeyFolder();
  KeyFolder(const KeyFolder&) = delete;
  KeyFolder& operator=(const KeyFolder&) = delete;
  const std::string& path() const noexcept { return path_; }
  /// Makes files again that a cleaner of temporary files has removed. Throws Error(io, bad_data).
  void restore() const;

  static std::string authority(const std::string& folder) { return folder + "/authority.pem"; }
  static std::string certificate(const std::string& folder) { return folder + "/certificate.pem"; }
  static std::string key(const std::string& folder) { return folder + "/key.pem"; }
  /// A new folder of that mode, for good. Throws Error(io).
  static void write(const std::string& folder, const JobKeys& keys);
  /// Throws Error(io, bad_data); refuses a folder or files that others may read.
  static JobKeys read(const std::string& folder);
  /// Throws Error(io, bad_data) if it is not a folder of this user alone.
  static void require_private(const std::string& folder);
  /// Before a job begins with the keys of this folder: checks their dates by this host's clock. Throws Error(bad_data).
  static void require_dates(const std::string& folder, const JobKeys& keys, std::time_t now);

 private:
  const JobKeys keys_;
  std::string path_;
};

/// HMAC-SHA256, 64 hexadecimal digits.
std::string hmac_text(std::string_view key, std::string_view message);
/// In a time that does not depend on where they differ.
bool equal_secrets(std::string_view a, std::string_view b) noexcept;
/// 256 random bits of the operating system, as 64 hexadecimal digits.
std::string random_token();

}  // namespace troupe
