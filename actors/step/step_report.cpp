#include "actors/step/step_report.hpp"

namespace troupe {

void report_decision(StepReport& report, const Decision& decision) {
  report.committed = decision.commit;
  report.reason = decision.commit ? ""
                                  : (decision.culprit >= 0 ? "rank " + std::to_string(decision.culprit) + ": " : "") +
                                        decision.reason;
  const StepNumbers& numbers = decision;
  static_cast<StepNumbers&>(report) = numbers;
  report.stop_signal = decision.stop_signal;
}

}  // namespace troupe
