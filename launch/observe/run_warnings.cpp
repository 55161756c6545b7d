#include "launch/observe/run_warnings.hpp"

#include <algorithm>
#include <cmath>

#include "launch/observe/advice.hpp"

namespace troupe {
namespace {

using Kind = MetricRecord::Kind;

bool is_told_while_training(const Advice& advice) {
  return advice.problem &&
         (advice.subject == "communication" || advice.subject == "loader" || advice.subject == "ranks");
}

std::string line_of(const Advice& advice) {
  auto finding = advice.finding;
  if (finding.ends_with('.')) finding.pop_back();
  return "warning: " + finding + "; try: " + advice.remedy;
}

double seconds_of(const MetricRecord& record) {
  const double seconds =
      record.value("time_metrics/end_to_end(s)") * static_cast<double>(record.step - record.steps_from);
  return std::isfinite(seconds) ? seconds : 0;
}

}  // namespace

bool RunWarnings::may_judge() const {
  std::size_t intervals = 0;
  double seconds = 0;
  for (const auto& record : since_) {
    if (record.kind != Kind::train || intervals++ == 0) continue;
    seconds += seconds_of(record);
  }
  return intervals > options_.at_least && seconds >= options_.seconds;
}

std::vector<std::string> RunWarnings::add(const MetricRecord& record) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : record.own) {
    if (!std::isfinite(value) && told_.insert("own " + name).second)
      lines.push_back("warning: the program's metric '" + name + "' is not finite at step " +
                      std::to_string(record.step) + "; the records have null");
  }
  if (record.kind == Kind::start || (record.kind == Kind::event && record.generation > 0)) since_.assign(1, record);
  if (record.kind != Kind::train) return lines;
  since_.push_back(record);
  const auto is_train = [](const MetricRecord& r) { return r.kind == Kind::train; };
  if (static_cast<std::size_t>(std::count_if(since_.begin(), since_.end(), is_train)) > options_.window + 1)
    since_.erase(std::find_if(since_.begin(), since_.end(), is_train));
  if (!may_judge()) return lines;
  for (const auto& advice : advise(numbers_of(since_), nullptr)) {
    if (is_told_while_training(advice) && told_.insert(advice.subject).second) lines.push_back(line_of(advice));
  }
  return lines;
}

}  // namespace troupe
