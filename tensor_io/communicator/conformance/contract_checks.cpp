// What the contract promises beyond values: groups, memory, the ledger, ends of waits.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "tensor_io/communicator/conformance/conformance_checks.hpp"
#include "tensor_io/communicator/conformance/conformance_values.hpp"
#include "tensor_io/communicator/conformance/rank_threads.hpp"

namespace troupe::conformance {

void check_split(ConformanceRun& run, Communicator& communicator) {
  const int rank = communicator.rank();
  const auto parity = communicator.split(rank % 2, -rank);
  const int expected_size = (run.world_size + (rank % 2 == 0 ? 1 : 0)) / 2;
  require(parity->world_size() == expected_size, "size of the group");
  const auto ranks = parity->all_gather_bytes(std::to_string(rank));
  for (std::size_t i = 1; i < ranks.size(); ++i)
    require(std::stoi(ranks[i - 1]) > std::stoi(ranks[i]), "ordered by key");
  const auto sum = at::full({1000}, rank, at::kLong);
  parity->all_reduce(sum);
  std::int64_t total = 0;
  for (int r = rank % 2; r < run.world_size; r += 2) total += r;
  require(sum[999].item<std::int64_t>() == total, "sum in the group");

  const auto some = communicator.split(rank == 0 ? -1 : 7, 0);
  require((some == nullptr) == (rank == 0), "a negative color has no group");
  if (some) some->barrier();
  communicator.barrier();
}

void check_slow_group(ConformanceRun& run, Communicator& communicator) {
  const bool slow = communicator.rank() >= 2;
  const auto group = communicator.split(slow ? 1 : 0, communicator.rank());
  const auto sum = at::ones({1000}, at::kFloat);
  // One of the slow ranks comes only when the fast ones have done all their work; the other waits for it inside its
  // collective.
  for (int fast = 0; fast < 2 && communicator.rank() == 3; ++fast)
    require(run.fast_ranks_done.try_acquire_for(run.options.timeout), "the fast ranks are done");
  for (int round = 0; round < 5; ++round) group->all_reduce(sum);
  if (!slow) run.fast_ranks_done.release();
  require(sum[999].item<float>() == 32, "sum in the group");
}

void check_ledger(ConformanceRun&, Communicator& communicator) {
  communicator.ledger().set_step(41);
  const auto tensor = at::ones({12}, at::kFloat);
  communicator.all_reduce(tensor, ReduceOp::avg, std::string(100, 'x'));
  communicator.barrier("end");
  const auto records = communicator.ledger().snapshot();
  require(records.size() == 2 && communicator.ledger().finished_count() == 2 && !communicator.ledger().in_flight(),
          "two, both finished");
  require(records[0].kind == CollectiveKind::all_reduce && records[0].numel == 12 && records[0].step == 41,
          "what it was");
  require(std::string(records[0].label.data()) == std::string(47, 'x'), "47 characters of the label");
  require(records[0].describe().find("12 Float by avg") != std::string::npos, records[0].describe());
  require(records[1].sequence == 2 && std::string(records[1].label.data()) == "end", "in order");
}

void check_allocate(ConformanceRun& run, Communicator& communicator) {
  require(communicator.allocate(0, at::kHalf).numel() == 0, "nothing is an amount too");
  for (int round = 0; round < 3; ++round) {
    const auto tensor = communicator.allocate(100'003, at::kFloat);
    require(tensor.scalar_type() == at::kFloat && tensor.numel() == 100'003, "as asked");
    require(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64 == 0, "aligned");
    require(tensor.abs().sum().item<float>() == 0, "zeroed");
    tensor.fill_(1);
    communicator.all_reduce(tensor);
    run.kept[communicator.rank()] = tensor;  // the one before is freed
  }
}

void allocated_memory_stays(ConformanceRun& run) {
  for (auto& tensor : run.kept) {
    require(tensor.defined() && tensor[100'002].item<float>() == 3, "its values stay");
    tensor.add_(1);
    require(tensor.sum().item<double>() == 4.0 * 100'003, "it can be written");
  }
}

void check_allocate_shared(ConformanceRun& run, Communicator& communicator) {
  const auto tensor = communicator.allocate_shared(3 * 1'001, at::kFloat);
  const auto& promised = run.options.shares_memory;
  require(!promised || tensor.defined() == *promised, "shared memory has it");
  const auto alike = communicator.all_gather_bytes(tensor.defined() ? "defined" : "undefined");
  for (const auto& other : alike) require(other == alike[0], "on all ranks alike");
  if (!tensor.defined()) return;
  require(tensor.scalar_type() == at::kFloat && tensor.numel() == 3 * 1'001 && tensor.abs().sum().item<float>() == 0,
          "as asked, zeroed");
  require(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64 == 0, "aligned");
  communicator.barrier();
  tensor.narrow(0, communicator.rank() * 1'001, 1'001).fill_(communicator.rank() + 1);
  communicator.barrier();
  for (int r = 0; r < 3; ++r)
    require(tensor[r * 1'001 + 1'000].item<float>() == static_cast<float>(r + 1), "what the others wrote");
  communicator.barrier();
  run.kept[communicator.rank()] = tensor;
}

void shared_memory_stays(ConformanceRun& run) {
  if (!run.kept[1].defined()) return;
  run.kept[0].fill_(7);
  run.kept[0] = at::Tensor();  // one rank's mapping is gone, the memory is not
  require(run.kept[1][3'002].item<float>() == 7, "one memory");
  require(run.kept[2].sum().item<double>() == 7.0 * 3 * 1'001, "all of it");
}

// What a rank's call throws; empty, if it returns.
template <class Call>
std::optional<ErrorReport> error_of(Call&& call) {
  try {
    call();
    return std::nullopt;
  } catch (const Error& error) {
    return error.report();
  }
}

// The last rank stays away until the others have given up.
void check_deadline(ConformanceRun& run, Communicator& communicator) {
  communicator.barrier();
  if (communicator.rank() == run.world_size - 1) {
    for (int other = 1; other < run.world_size; ++other)
      require(run.fast_ranks_done.try_acquire_for(run.options.timeout), "the other ranks give up");
    return;
  }
  const auto tensor = at::ones({100'000}, at::kFloat);
  const auto first = error_of([&] { communicator.all_reduce(tensor); });
  const auto later = error_of([&] { communicator.barrier(); });
  run.fast_ranks_done.release();
  require(first.has_value(), "a collective that a rank does not come to throws Error");
  require(first->code == ErrorCode::timeout || first->code == ErrorCode::peer_lost || first->code == ErrorCode::aborted,
          std::string("the code is timeout, or peer_lost for a peer that gave up first: ") + first->cause);
  require(later && later->code == first->code && later->cause == first->cause, "later calls throw the first reason");
}

// One rank aborts while the others wait for it, far from their deadline.
void check_abort(ConformanceRun& run, Communicator& communicator) {
  if (communicator.rank() == 0) {
    for (int r = 1; r < run.world_size; ++r)
      require(run.fast_ranks_done.try_acquire_for(run.options.timeout), "the other ranks come to wait");
    ErrorReport reason;
    reason.code = ErrorCode::aborted;
    reason.cause = "the suite stops it";
    communicator.abort(reason);
    const auto own = error_of([&] { communicator.barrier(); });
    require(own && own->code == ErrorCode::aborted, "calls after abort() throw its reason");
    return;
  }
  run.fast_ranks_done.release();
  const auto start = std::chrono::steady_clock::now();
  const auto failure = error_of([&] { communicator.barrier(); });
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  require(failure.has_value(), "a collective of a group that a rank has aborted throws Error");
  require(waited.count() < 5, "it throws soon after, not at the deadline");
}

}  // namespace troupe::conformance
