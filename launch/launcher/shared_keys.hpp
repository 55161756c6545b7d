#pragma once
#include <chrono>
#include <functional>
#include <string>

#include "launch/network/job_keys.hpp"

namespace troupe {

/// A new folder of mode 0700 with a pair for each node, in node0 and so on. Throws Error(io).
void write_keys_of_nodes(const std::string& folder, int nodes);

/// The keys of a job whose nodes share only a file system and the name of a folder there: srun's. Node 0 makes a pair
/// for each node and puts them there whole; the others wait for theirs. The folder has mode 0700 and is gone with this
/// object. One owner.
class SharedKeys {
 public:
  /// Node 0's. Replaces the remains of a job of the same name. Throws Error(io), and Error(bad_data) if the folder is
  /// another user's.
  SharedKeys(std::string folder, int nodes);
  ~SharedKeys();
  SharedKeys(const SharedKeys&) = delete;
  SharedKeys& operator=(const SharedKeys&) = delete;

  /// Node 0's own.
  const JobKeys& own() const noexcept { return own_; }
  /// Another node's. Throws Error(unavailable) after `patience`, Error(interrupted) once `stopped` is true, Error(io,
  /// bad_data) for a folder that is not this user's alone.
  static JobKeys await(const std::string& folder, int node, std::chrono::milliseconds patience,
                       const std::function<bool()>& stopped);

 private:
  std::string folder_;
  JobKeys own_;
};

}  // namespace troupe
