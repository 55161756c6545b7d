#include "actors/step/step_report.hpp"

namespace troupe {

void report_decision(StepReport& report, const Decision& decision) {
  report.committed = decision.commit;
  report.reason = decision.commit ? ""
                                  : (decision.culprit >= 0 ? "rank " + std::to_string(decision.culprit) + ": " : "") +
                                        decision.reason;
  report.loss = decision.loss;
  report.max_loss = decision.max_loss;
  report.samples = decision.samples;
  report.correct = decision.correct;
  report.gradient_norm = decision.gradient_norm;
  report.stop_signal = decision.stop_signal;
}

void report_measured(StepReport& report, const StepReport& measured) {
  report.measured_step = measured.step;
  report.committed = measured.committed;
  report.reason = measured.reason;
  report.loss = measured.loss;
  report.max_loss = measured.max_loss;
  report.samples = measured.samples;
  report.correct = measured.correct;
  report.gradient_norm = measured.gradient_norm;
  report.loss_scale = measured.loss_scale;
}

}  // namespace troupe
