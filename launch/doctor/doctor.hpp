#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launch/doctor/tcp_probe.hpp"
#include "launch/hosts/host_facts.hpp"
#include "launch/hosts/host_list.hpp"

namespace troupe {

enum class Verdict : std::uint8_t { ok, warn, fail };
const char* to_string(Verdict verdict) noexcept;

/// The result of one check.
struct Finding {
  std::string host;   ///< as in the list; `a -> b` for a link; empty: this machine
  std::string check;  ///< one word, the same on every host
  Verdict verdict = Verdict::ok;
  std::string found;
  std::string remedy;  ///< empty if all is well

  bool operator==(const Finding&) const = default;
};

// ---- The judgements: pure, and tested as such.

/// The findings about one machine alone. `slots` ranks are to run on it, of `hosts` machines.
std::vector<Finding> judge_host(const std::string& host, const HostFacts& facts, int slots, int hosts);
/// Whether it runs the same program as we do.
Finding judge_build(const std::string& host, const HostFacts& facts, const HostFacts& ours);
/// How far its clock is ahead of ours; known to within half the round trip.
Finding judge_clock(const std::string& host, std::chrono::nanoseconds ahead, std::chrono::nanoseconds round_trip);
/// The addresses of `name` on `host`. `itself`: the name is this host's own. `alone`: the whole list is on one
/// machine.
Finding judge_name(const std::string& host, const Host& name, const std::vector<std::string>& addresses,
                   const std::string& why, bool itself, bool alone);
/// Why ssh did not get through, by its messages.
Finding judge_ssh_failure(const Host& host, const std::string& errors, int exit_code,
                          const std::string& troupe_program);
struct Link {
  int from = 0, to = 0;  ///< indexes into the list
  LinkMeasure measure;
};
/// A slow link among fast ones is a warning: the slowest sets the pace of every collective.
std::vector<Finding> judge_links(const std::vector<Host>& hosts, const std::vector<Link>& links);
/// The links to measure: every one both ways among few hosts, a ring both ways among many.
std::vector<std::pair<int, int>> links_to_measure(int hosts);

/// `warn  h1  clock  1.2 s ahead (known to 0.4 ms); run an NTP client`.
std::string to_line(const Finding& finding);
std::string to_json(const std::vector<Finding>& findings);
/// 0, or 69 if anything failed.
int exit_code(const std::vector<Finding>& findings) noexcept;

// ---- The verb.

/// The way to the hosts.
struct DoctorPlace {
  std::string ssh_config;     ///< empty: ssh's own
  std::string remote_troupe;  ///< our executable there; empty: the same path as here
};
/// A further check of the whole list, for instance a collective; it reports failures as findings and does not throw.
using DoctorCheck = std::function<std::vector<Finding>(const std::vector<Host>&, const DoctorPlace&)>;

struct DoctorOptions {
  std::string troupe_program;  ///< our own path; the same path is expected on every host
  std::string version;
  std::vector<DoctorCheck> more_checks;  ///< run last, in order, only if every host was reached
};

extern const char* const kDoctorHelp;

/// `troupe doctor` with these words after it. Prints, and returns the exit status. Throws Error(usage).
int doctor_command(const std::vector<std::string>& words, const DoctorOptions& options);

}  // namespace troupe
