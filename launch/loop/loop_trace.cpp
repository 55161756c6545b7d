#include "launch/loop/loop_trace.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "launch/observe/trace_file.hpp"
#include "launch/observe/trace_json.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/rank_lines.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/communicator/clock_offset.hpp"

namespace troupe {
namespace {

constexpr std::string_view kLabel = "trace";

/// What all ranks know of one's part.
struct PartFacts {
  TraceTotals totals;
  std::int64_t bytes = 0;
  std::int64_t written = 0;  ///< steps of all ranks that the files have; a newcomer does not know them
};

std::vector<PartFacts> facts_of_all(Communicator& communicator, PartFacts own) {
  constexpr auto kWords = static_cast<std::int64_t>(sizeof own / sizeof(std::int64_t));
  std::vector<PartFacts> all(static_cast<std::size_t>(communicator.world_size()));
  communicator.all_gather(at::from_blob(all.data(), {communicator.world_size(), kWords}, at::kLong),
                          at::from_blob(&own, {kWords}, at::kLong), kLabel);
  return all;
}

void send_events(Communicator& communicator, const std::string& events) {
  auto bytes = at::empty({static_cast<std::int64_t>(events.size())}, at::kByte);
  std::memcpy(bytes.data_ptr(), events.data(), events.size());
  communicator.send(bytes, 0, kLabel);
}

std::string receive_events(Communicator& communicator, int source, std::int64_t size) {
  auto bytes = at::empty({size}, at::kByte);
  communicator.recv(bytes, source, kLabel);
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(size)};
}

}  // namespace

LoopTrace::LoopTrace(const Config& config, const RankSystemOptions& options)
    : setting_(profile_setting(config.profile)),
      run_dir_(config.run_dir),
      job_id_(options.job_id),
      began_with_(options.world_size),
      on_device_(!options.device.is_cpu()) {
  if (setting_.traces()) recorder_ = std::make_shared<TraceRecorder>();
  if (config.ranks > 1 && options.process.slot != 0) setting_.operators = false;  // Kineto is one per process
}

RankSystemOptions LoopTrace::with_recorder(RankSystemOptions options) const {
  if (recorder_) options.trace = recorder_;
  return options;
}

void LoopTrace::update(std::int64_t steps_done) {
  if (!recorder_ || !model_) return;
  if (steps_done > setting_.last && written_ > 0) recorded_ = {};  // before, all may have to gather once more
  const bool wanted = setting_.traces(steps_done);
  if (wanted == recorder_->recording()) return;
  if (!wanted) return close();
  blocks_ = std::make_unique<BlockTrace>(model_, recorder_);
  try {
    if (setting_.operators) operators_ = OperatorTrace::begin(on_device_);
  } catch (const std::exception& error) {  // Kineto's, where the program has a profiler of its own, for example
    no_operators_ = error.what();
  }
  recorder_->start();
}

void LoopTrace::close() {
  recorder_->stop();
  blocks_.reset();
  try {
    if (operators_) operators_->collect(*recorder_);
  } catch (const std::exception& error) {
    no_operators_ = error.what();
  }
  operators_.reset();
  // There may be something already: where all went back to a snapshot, into the window once more.
  auto more = recorder_->take();
  recorded_.dropped += more.dropped;
  for (auto& track : more.tracks) {
    const auto known = std::find_if(recorded_.tracks.begin(), recorded_.tracks.end(),
                                    [&](const auto& t) { return t.first == track.first; });
    if (known == recorded_.tracks.end()) {
      recorded_.tracks.push_back(std::move(track));
    } else {
      known->second.insert(known->second.end(), track.second.begin(), track.second.end());
    }
  }
}

void LoopTrace::record_until_now() {
  if (recorder_->recording()) close();
}

void LoopTrace::write(Compute& compute, LoopRecords& records) {
  const auto line = gather(compute.program_communicator(), compute.membership());
  if (!line.empty()) records.report("trace", line);
}

std::string LoopTrace::gather(Communicator& communicator, const Membership& membership) {
  record_until_now();
  const auto host_of = [&](int rank) { return membership.members[static_cast<std::size_t>(rank)].host; };
  const auto clocks = measure_clocks(communicator, [&](int rank) { return host_of(rank) == host_of(0); });
  const auto rank = communicator.rank();
  fault_point("trace", setting_.last);
  const TraceSource source{rank, host_of(rank), clocks[static_cast<std::size_t>(rank)].offset_ns};
  const auto part = trace_part(recorded_, source);
  const auto facts = facts_of_all(communicator, {part.totals, static_cast<std::int64_t>(part.events.size()), written_});
  std::int64_t steps = 0;
  for (const auto& fact : facts) {
    if (fact.totals.first_step >= 0) steps += fact.totals.last_step - fact.totals.first_step + 1;
    written_ = std::max(written_, fact.written);
  }
  if (steps <= written_)
    return {};  // all went back to before, and what there is by now is less than what the files have
  std::optional<TraceFile> file;
  if (rank == 0) file.emplace(run_dir_, job_id_, setting_, communicator.world_size());
  for (int from = 0; from < communicator.world_size(); ++from) {
    const auto& fact = facts[static_cast<std::size_t>(from)];
    if (rank == from && rank != 0) send_events(communicator, part.events);
    if (rank == 0)
      file->add({from, host_of(from), fact.totals, clocks[static_cast<std::size_t>(from)]},
                from == 0 ? part.events : receive_events(communicator, from, fact.bytes));
    communicator.barrier(
        kLabel);  // collective_timeout is to bound one rank's part on its way to the disk, not those of all ranks
  }
  if (rank == 0) file->finish();
  communicator.barrier(kLabel);
  written_ = steps;  // not before: if one dies meanwhile, rank 0 asks all the others again
  if (rank != 0) return {};
  if (!file->problem().empty()) return "trace: cannot be written: " + file->problem() + "; training goes on without it";
  auto line = describe_trace(file->path(), setting_, file->ranks(), began_with_);
  if (!no_operators_.empty()) line += "; no operators of rank 0: " + displayable(no_operators_, 200);
  return line;
}

bool LoopTrace::gather(Compute& compute, LoopRecords& records) {
  if (!recorder_ || compute.steps_done() != setting_.last) return false;
  write(compute, records);
  return true;
}

void LoopTrace::end(RankSystem& system, LoopRecords& records) {
  auto& compute = system.compute();
  const auto done = compute.steps_done();
  const bool within = setting_.first < done && done < setting_.last;
  if (!recorder_ || !model_ || ended_ || !within) return;
  ended_ = true;
  try {
    write(compute, records);
  } catch (const Error& error) {  // not tried again: the training is over, and a newcomer would begin elsewhere
    if (!may_be_recovered(error.code())) throw;
    give_up(system);
  }
}

std::string LoopTrace::write_alone(int rank, const std::string& host) {
  record_until_now();
  if (recorded_.tracks.empty() || written_ > 0) return {};
  const auto part = trace_part(recorded_, {rank, host, 0});
  recorded_ = {};
  const auto whose = "the part of rank " + std::to_string(rank) + " is ";
  try {
    return "trace: the job ended within the window; " + whose +
           write_trace_of_rank(run_dir_, {rank, host, part.totals, {}}, began_with_, part.events);
  } catch (const Error& error) {
    return "trace: " + whose + "lost: " + error.report().operation + ": " + error.report().cause;
  }
}

void LoopTrace::give_up(RankSystem& system) noexcept {
  const int rank = system.compute().rank();
  if (!recorder_ || rank < 0) return;
  try {
    const auto line = write_alone(rank, system.options().host);
    if (!line.empty()) print_error_line(line);
  } catch (const std::exception& error) {
    print_error_line("trace: the part of rank " + std::to_string(rank) + " is lost: " + error.what());
  }
}

}  // namespace troupe
