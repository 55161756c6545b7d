#include "launch/loop/loop_records.hpp"

#include <cstdio>
#include <limits>

#include "launch/loop/batch_source.hpp"

namespace troupe {

void LoopRecords::show() {
  keeps_ = shows_ = true;
  open();
}

void LoopRecords::open() {
  if (!keeps_ || records_) return;
  records_ = std::make_unique<RunRecords>(rank_, shows_ ? RunLog::Voice::console : RunLog::Voice::silent);
}

// The optimizer is known by now, and so is the rate of a step that a dead rank 0 has not written down.
void LoopRecords::begin() {
  open();
  if (!records_ || records_->has_begun()) return;
  RunRecords::Place last;
  if (const auto* source = position_.source()) {
    const auto& cursor = source->cursor();
    const bool at_start = cursor.step == 0 && cursor.epoch > 0;
    last = {cursor.epoch - (at_start ? 1 : 0), at_start ? rank_.steps_per_epoch() : cursor.step, &source->dataset()};
  }
  const auto done = rank_.steps_done();
  const auto lr = optimizer_ != nullptr && done > 0 ? optimizer_->first_rate(rank_.rate_for(*optimizer_, done - 1))
                                                    : std::numeric_limits<double>::quiet_NaN();
  records_->begin(last, lr);
}

RunRecords::Place LoopRecords::place_of_step() const {
  const auto* source = position_.source();
  if (source == nullptr) return {};
  return {source->cursor().epoch, source->cursor().step + 1, &source->dataset()};
}

void LoopRecords::add(const StepReport& report, const RunRecords::Place& place) {
  if (records_) records_->add(report, place);
}

void LoopRecords::add(const ValidationReport& report, const Dataset& held_out) {
  if (records_) records_->add(report, held_out);
}

void LoopRecords::add_checkpoint(double milliseconds) {
  if (records_) records_->add_checkpoint(milliseconds);
}

void LoopRecords::note(const std::string& event, const std::string& text) {
  if (records_) records_->note(event, text);
}

void LoopRecords::report(const std::string& event, const std::string& text) {
  note(event, text);
  if (are_shown()) return;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void LoopRecords::line(const std::string& text) {
  if (records_) records_->line(text);
}

void LoopRecords::log(const std::string& text) {
  if (are_shown()) return line(text);
  if (rank_.is_main()) std::fprintf(stderr, "%s\n", text.c_str());
}

void LoopRecords::end(const std::string& error) {
  optimizer_ = nullptr;
  if (records_) records_->fail(error);
  records_.reset();
  keeps_ = false;
}

}  // namespace troupe
