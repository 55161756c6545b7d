#pragma once
#include <optional>
#include <string>

#include "actors/messages/membership.hpp"

namespace troupe {

/// A coordinator's knowledge for a restart: the memberships it announced, in a file that it alone may write (flock).
/// A record is length (u32), type (u32), payload (cereal's portable binary), XXH3-64 of these; the file begins with
/// `TRJL` and a version. A torn last record is cut off; a damaged one before it ends the reading with
/// Error(bad_data).
class Journal {
 public:
  /// Opens or creates it for `job_id`. Throws Error(unavailable) if another coordinator holds it, Error(mismatch) for
  /// another job's, Error(bad_data) naming file and offset.
  Journal(std::string path, const std::string& job_id);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  bool is_new() const noexcept { return is_new_; }  ///< there was none, or one that could not be kept whole
  /// The last membership in it, if any.
  const std::optional<Membership>& last() const noexcept { return last_; }
  /// On disk when it returns. Throws Error(io), and then the journal's content is void: it is emptied.
  void append(const Membership& membership);

 private:
  void append_record(std::uint32_t type, const std::string& payload);

  std::string path_;
  int fd_ = -1;
  bool is_new_ = false;
  std::optional<Membership> last_;
};

}  // namespace troupe
