#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "launch/debug/debug_judgement.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/formatted.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

const char* to_string(DebugVerdict verdict) noexcept {
  switch (verdict) {
    case DebugVerdict::ok: return "ok";
    case DebugVerdict::warn: return "warn";
    case DebugVerdict::fail: return "fail";
    case DebugVerdict::skipped: return "-";
  }
  return "";
}

const char* to_string(DebugStep step) noexcept {
  constexpr std::array<const char*, kDebugSteps> names{"one rank", "environment", "group",
                                                       "tensors",  "gradients",   "efficiency"};
  return names[static_cast<std::size_t>(step) - 1];
}

std::string to_table(const std::vector<DebugFinding>& findings) {
  std::string text;
  for (const auto& finding : findings) {
    text += formatted("%d %-12s %-5s ", static_cast<int>(finding.step), to_string(finding.step),
                      to_string(finding.verdict)) +
            displayable(finding.found, finding.found.size());
    if (!finding.remedy.empty()) text += "; " + displayable(finding.remedy, finding.remedy.size());
    if (finding.verdict != DebugVerdict::ok && !finding.page.empty()) text += " (docs/" + finding.page + ")";
    text += "\n";
  }
  return text;
}

std::string to_json(const std::vector<DebugFinding>& findings) {
  const auto shown = [](const std::string& text) { return displayable(text, text.size()); };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& finding : findings) {
    list.push_back({{"step", static_cast<int>(finding.step)},
                    {"name", to_string(finding.step)},
                    {"verdict", finding.verdict == DebugVerdict::skipped ? "skipped" : to_string(finding.verdict)},
                    {"subject", shown(finding.subject)},
                    {"found", shown(finding.found)},
                    {"remedy", shown(finding.remedy)},
                    {"page", finding.page.empty() ? "" : "docs/" + finding.page}});
  }
  return nlohmann::ordered_json{{"findings", list}, {"exit_code", exit_code(findings)}}.dump(2) + "\n";
}

int exit_code(const std::vector<DebugFinding>& findings) noexcept {
  const bool failed =
      std::any_of(findings.begin(), findings.end(), [](const auto& f) { return f.verdict == DebugVerdict::fail; });
  return failed ? troupe::exit_code(ErrorCode::user) : 0;
}

}  // namespace troupe
