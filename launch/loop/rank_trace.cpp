#include "launch/loop/rank_trace.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "launch/observe/trace_file.hpp"
#include "launch/process/displayable.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/communicator/clock_offset.hpp"

namespace troupe {
namespace {

constexpr std::string_view kLabel = "trace";

std::int64_t* words_of(const at::Tensor& tensor) { return tensor.data_ptr<std::int64_t>(); }

at::Tensor words_of(const TraceTotals& totals, std::size_t bytes) {
  return at::tensor({totals.events, totals.dropped, totals.first_step, totals.last_step, totals.collectives_ns,
                     totals.hidden_ns, totals.steps_ns, static_cast<std::int64_t>(bytes)},
                    at::kLong);
}

TraceTotals totals_of(const at::Tensor& words) {
  const auto* word = words_of(words);
  return {word[0], word[1], word[2], word[3], word[4], word[5], word[6]};
}

void send_part(Communicator& communicator, const TracePart& part) {
  communicator.send(words_of(part.totals, part.events.size()), 0, kLabel);
  auto bytes = at::empty({static_cast<std::int64_t>(part.events.size())}, at::kByte);
  std::memcpy(bytes.data_ptr(), part.events.data(), part.events.size());
  communicator.send(bytes, 0, kLabel);
}

TracePart receive_part(Communicator& communicator, int source) {
  auto words = words_of(TraceTotals(), 0);
  communicator.recv(words, source, kLabel);
  TracePart part{totals_of(words), {}};
  auto bytes = at::empty({words_of(words)[7]}, at::kByte);
  communicator.recv(bytes, source, kLabel);
  part.events.assign(static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.numel()));
  return part;
}

}  // namespace

RankTrace::RankTrace(RankTraceOptions options) : options_(std::move(options)) {}

RankTrace::~RankTrace() = default;

void RankTrace::update(std::int64_t steps_done) {
  if (steps_done > options_.setting.last && written_ > 0) recorded_ = {};  // before, all may have to gather once more
  const bool wanted = options_.setting.traces(steps_done);
  if (wanted == recorder_->recording()) return;
  if (!wanted) return close();
  if (model_) blocks_ = std::make_unique<BlockTrace>(model_, recorder_);
  try {
    if (options_.setting.operators) operators_ = OperatorTrace::begin(options_.on_device);
  } catch (const std::exception& error) {  // Kineto's, where the program has a profiler of its own, for example
    no_operators_ = error.what();
  }
  recorder_->start();
}

void RankTrace::close() {
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

void RankTrace::record_until_now() {
  if (recorder_->recording()) close();
}

std::string RankTrace::gather(Communicator& communicator, const Membership& membership) {
  record_until_now();
  const auto host_of = [&](int rank) { return membership.members[static_cast<std::size_t>(rank)].host; };
  const auto clocks = measure_clocks(communicator, [&](int rank) { return host_of(rank) == host_of(0); });
  const auto rank = communicator.rank();
  fault_point("trace", options_.setting.last);
  const TraceSource source{rank, host_of(rank), clocks[static_cast<std::size_t>(rank)].offset_ns};
  auto part = trace_part(recorded_, source);
  const auto steps = steps_of_all(communicator, part.totals);
  if (steps <= written_)
    return {};  // all went back to before, and what there is by now is less than what the files have
  std::optional<TraceFile> file;
  if (rank == 0) file.emplace(options_.run_dir, options_.job_id, options_.setting, communicator.world_size());
  for (int from = 0; from < communicator.world_size(); ++from) {
    if (rank == from && rank != 0) send_part(communicator, part);
    if (rank == 0) {
      if (from > 0) part = receive_part(communicator, from);
      file->add({from, host_of(from), part.totals, clocks[static_cast<std::size_t>(from)]}, part.events);
    }
    communicator.barrier(
        kLabel);  // collective_timeout is to bound one rank's part on its way to the disk, not those of all ranks
  }
  if (rank == 0) file->finish();
  communicator.barrier(kLabel);
  written_ = steps;  // not before: if one dies meanwhile, rank 0 asks all the others again
  if (rank != 0) return {};
  if (!file->problem().empty()) return "trace: it cannot be written: " + file->problem() + "; training goes on without";
  auto line = describe_trace(file->path(), options_.setting, file->ranks(), options_.began_with);
  if (!no_operators_.empty()) line += "; no operators of rank 0: " + displayable(no_operators_, 200);
  return line;
}

// Steps that the ranks recorded, together; also finds out how many were written, which newcomers do not know.
std::int64_t RankTrace::steps_of_all(Communicator& communicator, const TraceTotals& own) {
  const auto mine = at::tensor({own.first_step < 0 ? 0 : own.last_step - own.first_step + 1, written_}, at::kLong);
  auto all = at::empty({communicator.world_size(), 2}, at::kLong);
  communicator.all_gather(all, mine, kLabel);
  written_ = all.select(1, 1).max().item<std::int64_t>();
  return all.select(1, 0).sum().item<std::int64_t>();
}

std::string RankTrace::write_alone(int rank, const std::string& host) {
  record_until_now();
  if (recorded_.tracks.empty() || written_ > 0) return {};
  const auto part = trace_part(recorded_, {rank, host, 0});
  recorded_ = {};
  const auto whose = "what rank " + std::to_string(rank) + " recorded is ";
  try {
    return "trace: the job ended within the window; " + whose +
           write_trace_of_rank(options_.run_dir, {rank, host, part.totals, {}}, options_.began_with, part.events);
  } catch (const Error& error) {
    return "trace: " + whose + "lost: " + error.report().operation + ": " + error.report().cause;
  }
}

}  // namespace troupe
