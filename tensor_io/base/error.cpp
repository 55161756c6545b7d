#include "tensor_io/base/error.hpp"

#include <cstddef>
#include <iterator>
#include <utility>

namespace troupe {

namespace {

struct Facts {
  std::string_view name;
  int exit;
};

// By code.
constexpr Facts kFacts[] = {
    {"ok", 0},           {"usage", 2},         {"bad data", 65}, {"mismatch", 65},
    {"unavailable", 69}, {"input/output", 74}, {"timeout", 70},  {"aborted", 70},
    {"peer lost", 70},   {"not finite", 65},   {"user code", 1}, {"interrupted", 130},
    {"parked", 75},      {"state_lost", 75},   {"fenced", 76},   {"internal", 70},
    {"device lost", 70},
};
static_assert(std::size(kFacts) == static_cast<std::size_t>(ErrorCode::device_lost) + 1);

// A code that comes from another process may be none.
Facts facts_of(ErrorCode code) noexcept {
  const auto index = static_cast<std::size_t>(code);
  return index < std::size(kFacts) ? kFacts[index] : Facts{"unknown", 70};
}

// One line, not too long, whatever text of a file or a name of another's is in it; a NUL would end what(). UTF-8 stays.
std::string in_one_line(const std::string& text, std::size_t most) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string line;
  for (const char c : text) {
    if (line.size() >= most && (static_cast<unsigned char>(c) & 0xc0) != 0x80)
      return line + "... (" + std::to_string(text.size()) + " bytes)";
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      line += c;
    } else if (c == '\n' || c == '\t') {
      line += c == '\n' ? "\\n" : "\\t";
    } else {
      line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return line;
}

}  // namespace

std::string_view to_string(ErrorCode code) noexcept { return facts_of(code).name; }

int exit_code(ErrorCode code) noexcept { return facts_of(code).exit; }

bool may_be_recovered(ErrorCode code) noexcept {
  return code == ErrorCode::peer_lost || code == ErrorCode::aborted || code == ErrorCode::timeout;
}

std::string ErrorReport::to_string() const {
  std::string who;
  auto add = [&who](std::string text) { who += (who.empty() ? "" : ", ") + std::move(text); };
  if (rank >= 0) add("rank " + std::to_string(rank));
  if (!actor.empty()) add(actor);
  if (step >= 0) add("step " + std::to_string(step));
  constexpr std::size_t kLong = 2000, kShort = 800;
  std::string line = in_one_line(who, kShort);
  if (!operation.empty()) line += (line.empty() ? "" : ": ") + in_one_line(operation, kShort);
  line +=
      (line.empty() ? "" : ": ") + (cause.empty() ? std::string(troupe::to_string(code)) : in_one_line(cause, kLong));
  if (!remedy.empty()) line += "; " + in_one_line(remedy, std::string::npos);  // mostly lists of ours
  return line;
}

Error::Error(ErrorReport report) : std::runtime_error(report.to_string()), report_(std::move(report)) {}

Error::Error(ErrorCode code, std::string operation, std::string cause, std::string remedy)
    : Error(ErrorReport{code, -1, {}, -1, std::move(operation), std::move(cause), std::move(remedy)}) {}

}  // namespace troupe
