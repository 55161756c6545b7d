#pragma once
#include "launch/debug/debug_judgement.hpp"

namespace troupe {

// What the judgements of single steps share. Each adds what it finds to `findings`, nothing if it had nothing to look
// at.

using DebugFindings = std::vector<DebugFinding>;

/// nullptr: no rank wrote anything down.
const InspectionRecord* first_record(const DebugRun& run);
/// The value of that setting; empty: there is none.
std::string setting(const InspectionRecord& record, const std::string& name);

void judge_tensors(const DebugRuns& runs, DebugFindings& findings);
void judge_gradients(const DebugRuns& runs, DebugFindings& findings);
void judge_efficiency(const DebugRuns& runs, DebugFindings& findings);

}  // namespace troupe
