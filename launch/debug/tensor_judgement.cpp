#include <algorithm>

#include "launch/debug/step_judgements.hpp"
#include "launch/process/formatted.hpp"

namespace troupe {
namespace {

using Verdict = DebugVerdict;
using Findings = DebugFindings;

std::string type_of(const InspectedTensor& tensor) {
  return tensor.shape + " " + tensor.dtype + (tensor.requires_grad ? "" : " frozen");
}

void judge_one_ranks_tensors(const InspectionRecord& record, Findings& findings) {
  const auto add = [&](Verdict verdict, const std::string& subject, std::string found, std::string remedy,
                       const char* page) {
    findings.push_back({DebugStep::tensors, verdict, std::move(found), std::move(remedy), subject, page});
  };
  const char* const devices = "troubleshooting.md#5-tensors-on-different-devices";
  bool any_trained = false;
  for (const auto& tensor : record.model) {
    const auto what = (tensor.buffer ? "buffer " : "parameter ") + tensor.name;
    any_trained = any_trained || (tensor.requires_grad && !tensor.buffer);
    if (tensor.device != record.device)
      add(Verdict::fail, tensor.name, what + " is on " + tensor.device + ", the rank trains on " + record.device,
          "register it with the module: rank.distribute moves what is registered", devices);
    if (!tensor.dense)
      add(Verdict::warn, tensor.name, what + " has gaps or overlaps in its memory, and is copied in every collective",
          "make it with contiguous()", "writing_a_model.md");
    if (!tensor.finite)
      add(Verdict::fail, tensor.name, what + " begins with NaN" + (tensor.buffer ? "" : " or infinity"),
          "look at its initialisation", "troubleshooting.md#numbers");
  }
  if (!record.model.empty() && !any_trained)
    add(Verdict::fail, "requires_grad", "no parameter requires a gradient", "see which ones the program froze",
        "writing_a_model.md");
  for (const auto& field : record.batch) {
    const bool lengths = field.device == "cpu" && (field.dtype == "Long" || field.dtype == "Int");
    if (field.device != record.device)
      add(lengths ? Verdict::warn : Verdict::fail, field.name,
          "the batch's " + field.name + " is on " + field.device + ", the model on " + record.device,
          "leave it where the loader puts it, or make it with input.options()", devices);
    if (!field.finite)
      add(Verdict::fail, field.name, "the batch's " + field.name + " has NaN in it", "look at the data", "data.md");
  }
  for (const auto& loss : record.loss) {
    if (loss.device != record.device)
      add(Verdict::fail, "loss", "the loss is on " + loss.device + ", the rank trains on " + record.device,
          "compute it there", devices);
    if (loss.dtype != "Float" && loss.dtype != "Double")
      add(Verdict::warn, "loss", "the loss is " + loss.dtype + ", which is too coarse for a sum",
          "compute the loss in float32: scores.to(torch::kFloat)", "numbers.md");
  }
}

void judge_equality(const InspectionRecord& first, const InspectionRecord& other, Findings& findings) {
  const auto on = " on rank " + std::to_string(other.rank), on_first = " on rank " + std::to_string(first.rank);
  const char* const seeds = "troubleshooting.md#7-no-seed-or-the-same-one-everywhere";
  for (std::size_t i = 0; i < std::max(first.model.size(), other.model.size()); ++i) {
    if (i >= first.model.size() || i >= other.model.size()) {
      const auto& more = i < first.model.size() ? first : other;
      findings.push_back({DebugStep::tensors, Verdict::fail,
                          more.model[i].name + " is only in the model of rank " + std::to_string(more.rank),
                          "build the same model on every rank", more.model[i].name, seeds});
      return;
    }
    const auto &mine = first.model[i], &its = other.model[i];
    if (mine.name != its.name || type_of(mine) != type_of(its)) {
      findings.push_back({DebugStep::tensors, Verdict::fail,
                          mine.name + " " + type_of(mine) + on_first + " is " + its.name + " " + type_of(its) + on,
                          "build the same model on every rank", mine.name, seeds});
      return;
    }
    if (mine.digest == its.digest) continue;
    findings.push_back({DebugStep::tensors, Verdict::warn,
                        mine.name + " has other initial values" + on + " than" + on_first + "; rank 0's replace them",
                        "build it in rank.distribute([&] { return MyModel(...); }), which seeds all ranks alike",
                        mine.name, seeds});
    return;  // the others begin differently because this one does
  }
  for (std::size_t i = 0; i < std::min(first.batch.size(), other.batch.size()); ++i) {
    const auto &mine = first.batch[i], &its = other.batch[i];
    const auto sample = [](const std::string& shape) { return shape.substr(std::min(shape.find(','), shape.size())); };
    if (mine.name == its.name && mine.dtype == its.dtype && sample(mine.shape) == sample(its.shape)) continue;
    findings.push_back({DebugStep::tensors, Verdict::fail,
                        "the batch's " + mine.name + " is " + mine.shape + " " + mine.dtype + on_first + ", and " +
                            its.name + " " + its.shape + " " + its.dtype + on,
                        "give every rank the same data set", mine.name, "data.md"});
    return;
  }
}

void judge_buffers(const DebugRun& run, Findings& findings) {
  const auto* first = first_record(run);
  if (first == nullptr) return;
  for (const auto& other : run.records) {
    for (std::size_t i = 0; i < std::min(first->buffers_at_end.size(), other.buffers_at_end.size()); ++i) {
      const auto &mine = first->buffers_at_end[i], &its = other.buffers_at_end[i];
      if (mine.digest == its.digest) continue;
      findings.push_back({DebugStep::tensors, Verdict::warn,
                          "buffer " + mine.name +
                              formatted(" differs between ranks %d and %d after %zu steps", first->rank, other.rank,
                                        first->losses.size()),
                          setting(*first, "broadcast_buffers") == "false"
                              ? "set broadcast_buffers to true: rank 0's replace the others'"
                              : "register it with the module before rank.distribute",
                          mine.name, "strategies.md"});
      return;
    }
  }
}

}  // namespace

void judge_tensors(const DebugRuns& runs, Findings& findings) {
  const auto before = findings.size();
  const auto* run = runs.together.records.empty() ? &runs.alone : &runs.together;
  const auto* record = first_record(*run);
  if (record == nullptr || record->model.empty()) return;
  judge_one_ranks_tensors(*record, findings);
  for (const auto& other : run->records) {
    if (other.rank != record->rank && !other.model.empty()) judge_equality(*record, other, findings);
  }
  if (record->comparable) judge_buffers(*run, findings);
  if (findings.size() > before) return;
  const auto buffers =
      std::count_if(record->model.begin(), record->model.end(), [](const auto& t) { return t.buffer; });
  findings.push_back({DebugStep::tensors,
                      Verdict::ok,
                      formatted("%zu parameters, %zu buffers, %zu fields of a batch, on %s%s",
                                record->model.size() - static_cast<std::size_t>(buffers),
                                static_cast<std::size_t>(buffers), record->batch.size(), record->device.c_str(),
                                run->records.size() > 1 ? "; the same on all ranks" : ""),
                      {},
                      {},
                      "writing_a_model.md"});
}

}  // namespace troupe
