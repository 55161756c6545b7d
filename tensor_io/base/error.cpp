#include "tensor_io/base/error.hpp"

#include <utility>

namespace troupe {

std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::ok: return "ok";
    case ErrorCode::usage: return "usage";
    case ErrorCode::bad_data: return "bad data";
    case ErrorCode::mismatch: return "mismatch";
    case ErrorCode::unavailable: return "unavailable";
    case ErrorCode::io: return "input/output";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::aborted: return "aborted";
    case ErrorCode::peer_lost: return "peer lost";
    case ErrorCode::not_finite: return "not finite";
    case ErrorCode::user: return "user code";
    case ErrorCode::interrupted: return "interrupted";
    case ErrorCode::parked: return "parked";
    case ErrorCode::state_lost: return "state_lost";
    case ErrorCode::fenced: return "fenced";
    case ErrorCode::internal: return "internal";
  }
  return "unknown";
}

bool may_be_recovered(ErrorCode code) noexcept {
  return code == ErrorCode::peer_lost || code == ErrorCode::aborted || code == ErrorCode::timeout;
}

int exit_code(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::ok: return 0;
    case ErrorCode::user: return 1;
    case ErrorCode::usage: return 2;
    case ErrorCode::bad_data:
    case ErrorCode::mismatch:
    case ErrorCode::not_finite: return 65;
    case ErrorCode::unavailable: return 69;
    case ErrorCode::timeout:
    case ErrorCode::aborted:
    case ErrorCode::peer_lost:
    case ErrorCode::internal: return 70;
    case ErrorCode::io: return 74;
    case ErrorCode::interrupted: return 130;
    case ErrorCode::parked:
    case ErrorCode::state_lost: return 75;
    case ErrorCode::fenced: return 76;
  }
  return 70;
}

std::string ErrorReport::to_string() const {
  std::string who;
  auto add = [&who](std::string text) { who += (who.empty() ? "" : ", ") + std::move(text); };
  if (rank >= 0) add("rank " + std::to_string(rank));
  if (!actor.empty()) add(actor);
  if (step >= 0) add("step " + std::to_string(step));
  std::string line = who;
  if (!operation.empty()) line += (line.empty() ? "" : ": ") + operation;
  line += (line.empty() ? "" : ": ") + (cause.empty() ? std::string(troupe::to_string(code)) : cause);
  if (!remedy.empty()) line += "; " + remedy;
  return line;
}

Error::Error(ErrorReport report) : std::runtime_error(report.to_string()), report_(std::move(report)) {}

Error::Error(ErrorCode code, std::string operation, std::string cause, std::string remedy)
    : Error(ErrorReport{code, -1, {}, -1, std::move(operation), std::move(cause), std::move(remedy)}) {}

}  // namespace troupe
