#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// A machine of the job, as in a host list.
struct Host {
  std::string
      name;  ///< lower case, no trailing dot, no brackets: the name in logs, which ssh's own configuration may know
  std::string address;     ///< the address to reach it; the name if the list has none
  int slots = 1;           ///< places for one rank each
  std::uint16_t port = 0;  ///< of its sshd; 0: from ssh's configuration
  std::string user;        ///< empty: from ssh's configuration
  int line = 0;            ///< its place in the list, from 1: a line of the file, or an entry of the flag

  bool operator==(const Host&) const = default;
};

/// Its address is a loopback one: it needs no ssh.
bool is_this_machine(const Host& host);

constexpr int kMaxHosts = 10'000;
constexpr int kMaxSlots = 1024;  ///< of one host
constexpr int kMaxRanks = 1'000'000;
constexpr std::size_t kMaxHostFileBytes = 4 << 20;

/// Reads the text of a host file: a host on each line, `name slots=N [port=P] [user=U] [address=A]`, in any order of
/// fields. A bare name is one slot, `name:N` is N, `user@name` names the user, IPv6 addresses stand in brackets if
/// something follows the colon. `#` begins a comment. The slots of a host on several lines add up. Files of DeepSpeed,
/// Open MPI and PBS are accepted; Open MPI's max_slots is checked and has no effect. Throws Error(usage) that names
/// `file`, the line, the field, the value and the remedy.
std::vector<Host> parse_host_list(std::string_view text, const std::string& file);

/// The same of a regular file of at most kMaxHostFileBytes; never waits for a pipe or a device.
std::vector<Host> read_host_file(const std::string& path);

/// Reads `a:8,b:8`; `flag` is its name in errors.
std::vector<Host> parse_host_flag(std::string_view text, const std::string& flag = "--hosts");

/// A rank's place.
struct RankPlace {
  int host = 0;  ///< index into the list
  int local_rank = 0;

  bool operator==(const RankPlace&) const = default;
};

/// The place of every rank: a host's slots are consecutive ranks, hosts in the order of the list.
std::vector<RankPlace> assign_ranks(const std::vector<Host>& hosts);

}  // namespace troupe
