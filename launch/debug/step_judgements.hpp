#pragma once
#include "launch/debug/debug_judgement.hpp"

namespace troupe {

// The common part of the judgements of single steps. Each adds its findings to `findings`, none if it had nothing to
// judge.

using DebugFindings = std::vector<DebugFinding>;

/// nullptr: no rank wrote a record.
const InspectionRecord* first_record(const DebugRun& run);
/// The value of that setting; empty: there is none.
std::string setting(const InspectionRecord& record, const std::string& name);

void judge_tensors(const DebugRuns& runs, DebugFindings& findings);
void judge_gradients(const DebugRuns& runs, DebugFindings& findings);
void judge_efficiency(const DebugRuns& runs, DebugFindings& findings);

}  // namespace troupe
