#include "launch/doctor/doctor_agent.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <istream>
#include <map>
#include <optional>
#include <ostream>
#include <sstream>

#include "launch/process/displayable.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using Wall = std::chrono::system_clock;

const std::string kGreeting = "troupe-doctor 1";

std::string rest_of(std::istringstream& words) {
  std::string rest;
  std::getline(words >> std::ws, rest);
  return rest;
}

std::int64_t wall_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Wall::now().time_since_epoch()).count();
}

}  // namespace

void serve_doctor(std::istream& in, std::ostream& out, const std::string& version) {
  std::map<std::string, std::unique_ptr<TcpProbeServer>> served;
  out << kGreeting << std::endl;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string request;
    words >> request;
    try {
      if (request == "facts") {
        out << "facts " << to_line(gather_host_facts(version, rest_of(words))) << std::endl;
      } else if (request == "clock") {
        out << "clock " << wall_now() << std::endl;
      } else if (request == "resolve") {
        std::string why;
        const auto addresses = resolve_name(rest_of(words), why);
        out << (addresses.empty() ? "name unresolved " + why : "name resolved");
        for (const auto& address : addresses) out << ' ' << address;
        out << std::endl;
      } else if (request == "serve") {
        const auto address = rest_of(words);
        auto& server = served[address];
        if (!server) server = std::make_unique<TcpProbeServer>(address);
        out << "serving " << server->port() << ' ' << server->token() << std::endl;
      } else if (request == "measure") {
        std::string address, token;
        int port = 0, milliseconds = 0;
        words >> address >> port >> token >> milliseconds;
        if (!words || port < 1 || port > 65535) throw Error(ErrorCode::usage, "measure", "'" + displayable(line) + "'");
        const auto link =
            measure_link(address, static_cast<std::uint16_t>(port), token, std::chrono::milliseconds(milliseconds));
        out << "measured " << link.round_trip.count() << ' ' << static_cast<std::uint64_t>(link.bytes_per_second)
            << std::endl;
      } else {
        throw Error(ErrorCode::usage, "doctor's agent", "there is no request '" + displayable(line) + "'");
      }
    } catch (const Error& error) {
      const auto& report = error.report();
      out << "error " << displayable(report.operation + ": " + report.cause, 500) << '\t'
          << displayable(report.remedy, 300) << std::endl;
    }
  }
}

void DoctorSession::greet(std::chrono::seconds patience) {
  const auto deadline = PipedCommand::Clock::now() + patience;
  for (int lines = 0; lines < 1000; ++lines) {  // a login may print something first
    const auto line = command_.read_line(deadline);
    if (!line) break;
    if (*line == kGreeting) return;
  }
  throw Error(ErrorCode::unavailable, "doctor's agent", "it does not answer", "check its host");
}

std::string DoctorSession::ask(const std::string& request, const std::string& expected, std::chrono::seconds patience) {
  std::optional<std::string> line;
  if (!silent_ && command_.write_line(request)) line = command_.read_line(PipedCommand::Clock::now() + patience);
  silent_ = !line;
  if (!line)
    throw Error(ErrorCode::unavailable, "doctor's agent",
                "it ended, or was silent for " + std::to_string(patience.count()) + " s");
  if (line->starts_with("error ")) {
    const auto tab = line->find('\t');
    throw Error(ErrorCode::unavailable, {}, displayable(line->substr(6, tab - 6), 500),
                tab == std::string::npos ? std::string() : displayable(line->substr(tab + 1), 300));
  }
  if (!line->starts_with(expected))
    throw Error(ErrorCode::bad_data, "doctor's agent", "it answered '" + displayable(*line) + "'");
  return line->size() > expected.size() ? line->substr(expected.size() + 1) : std::string();
}

HostFacts DoctorSession::facts(const std::string& run_dir) {
  return host_facts_from_line(ask("facts " + run_dir, "facts"));
}

std::pair<std::chrono::nanoseconds, std::chrono::nanoseconds> DoctorSession::clock() {
  std::pair<std::chrono::nanoseconds, std::chrono::nanoseconds> best{0ns, std::chrono::nanoseconds::max()};
  for (int i = 0; i < 7; ++i) {
    const auto before = std::chrono::steady_clock::now();
    const auto ours = wall_now();
    std::int64_t theirs = 0;
    if (!(std::istringstream(ask("clock", "clock")) >> theirs))
      throw Error(ErrorCode::bad_data, "doctor's agent", "its clock is not a number");
    const std::chrono::nanoseconds round_trip = std::chrono::steady_clock::now() - before;
    if (round_trip < best.second)
      best = {std::chrono::nanoseconds(theirs) - std::chrono::nanoseconds(ours) - round_trip / 2, round_trip};
  }
  return best;
}

std::vector<std::string> DoctorSession::resolve(const std::string& name, std::string& why) {
  const auto answer = ask("resolve " + name, "name", 60s);
  std::istringstream words(answer);
  std::string verdict;
  std::vector<std::string> addresses;
  words >> verdict;
  if (verdict == "resolved") {
    for (std::string address; words >> address && addresses.size() < 100;) addresses.push_back(displayable(address));
  } else {
    why = displayable(rest_of(words));
  }
  return addresses;
}

DoctorSession::Served DoctorSession::serve(const std::string& address) {
  Served served;
  std::istringstream words(ask("serve " + address, "serving"));
  if (!(words >> served.port >> served.token))
    throw Error(ErrorCode::bad_data, "doctor's agent", "it did not send its port");
  return served;
}

LinkMeasure DoctorSession::measure(const std::string& address, const Served& served,
                                   std::chrono::milliseconds duration) {
  std::istringstream words(ask("measure " + address + " " + std::to_string(served.port) + " " + served.token + " " +
                                   std::to_string(duration.count()),
                               "measured", std::chrono::duration_cast<std::chrono::seconds>(duration) + 100s));
  std::int64_t round_trip = 0;
  double rate = 0;
  if (!(words >> round_trip >> rate) || round_trip < 0 || !(rate >= 0))
    throw Error(ErrorCode::bad_data, "doctor's agent", "it sent no measurement");
  return {std::chrono::nanoseconds(round_trip), rate};
}

std::pair<int, std::string> DoctorSession::ending() {
  const int status = command_.finish(PipedCommand::Clock::now() + 1s);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), command_.errors()};
}

}  // namespace troupe
