// What collectives that move data must deliver.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <string>

#include "tensor_io/communicator/conformance/conformance_checks.hpp"
#include "tensor_io/communicator/conformance/conformance_values.hpp"
#include "tensor_io/communicator/conformance/rank_threads.hpp"

namespace troupe::conformance {
namespace {

// All ranks' inputs, end to end.
template <class Input>
at::Tensor inputs_of(int ranks, const Input& input) {
  std::vector<at::Tensor> all;
  all.reserve(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) all.push_back(input(r));
  return at::cat(all);
}

}  // namespace

void check_gathers(ConformanceRun& run, Communicator& communicator) {
  const int world = run.world_size;
  const int rank = communicator.rank();
  const auto everyone = [&](std::int64_t numel, at::ScalarType dtype) {
    return inputs_of(world, [&](int r) { return input_of(r, numel, dtype); });
  };
  for (const auto dtype : kTypes) {
    for (const std::int64_t numel : {0, 1, 37, 4'001, dtype == at::kFloat && world <= 3 ? 280'001 : 4'002}) {
      const auto name = [&](const char* what) { return case_name(dtype, numel, what); };
      const int root = static_cast<int>(numel % world);
      const auto own = input_of(rank, numel, dtype);
      const auto all = everyone(numel, dtype);

      const auto gathered = at::zeros({numel * world}, dtype);
      communicator.all_gather(gathered, own);
      require(same_bits(gathered, all), name("all_gather"));
      const auto in_place = at::zeros({numel * world}, dtype);
      in_place.narrow(0, numel * rank, numel).copy_(own);
      communicator.all_gather(in_place, in_place.narrow(0, numel * rank, numel));
      require(same_bits(in_place, all), name("all_gather in place"));

      const auto at_root = rank == root ? at::zeros({numel * world}, dtype) : at::Tensor();
      communicator.gather(at_root, own, root);
      if (rank == root) require(same_bits(at_root, all), name("gather"));

      const auto part = at::zeros({numel}, dtype);
      communicator.scatter(part, rank == root ? all : at::Tensor(), root);
      require(same_bits(part, own), name("scatter"));

      const auto exchanged = at::zeros({numel * world}, dtype);
      communicator.all_to_all(exchanged, input_of(rank, numel * world, dtype));
      const auto expected =
          inputs_of(world, [&](int r) { return input_of(r, numel, dtype, ReduceOp::sum, numel * rank); });
      require(same_bits(exchanged, expected), name("all_to_all"));

      const auto spread = rank == root ? own.clone() : at::zeros({numel}, dtype);
      communicator.broadcast(spread, root);
      require(same_bits(spread, input_of(root, numel, dtype)), name("broadcast"));
      communicator.barrier();
    }
  }
}

void check_all_gather_into_allocated(ConformanceRun&, Communicator& communicator) {
  const std::int64_t numel = 9'001;
  const auto output = communicator.allocate(3 * numel, at::kFloat);
  for (int round = 0; round < 3; ++round) {
    output.zero_();
    communicator.all_gather(output, input_of(communicator.rank(), numel, at::kFloat, ReduceOp::sum, round));
    const auto all = inputs_of(3, [&](int r) { return input_of(r, numel, at::kFloat, ReduceOp::sum, round); });
    require(same_bits(output, all), "all_gather in windows");
  }
}

void check_send_recv(ConformanceRun& run, Communicator& communicator) {
  const int world = run.world_size;
  const int rank = communicator.rank();
  // A ring in which rank 0 starts; then a collective, which must not be confused by who talked to whom before.
  for (const std::int64_t numel : {0, 1, 999, 65'536, 65'600, 200'003}) {  // shm's parcels are of 256 KiB
    for (int round = 0; round < 2; ++round) {
      const auto token = rank == 0 ? input_of(round, numel, at::kFloat) : at::zeros({numel}, at::kFloat);
      if (rank > 0) communicator.recv(token, rank - 1, "token");
      communicator.send(token, (rank + 1) % world, "token");
      if (rank == 0) {
        token.zero_();
        communicator.recv(token, world - 1, "token");
      }
      require(same_bits(token, input_of(round, numel, at::kFloat)), case_name(at::kFloat, numel, "ring"));
    }
    if (rank < 2) {  // only two of them talk
      const auto one = at::full({3}, rank, at::kLong);
      rank == 0 ? communicator.send(one, 1) : communicator.recv(one, 0);
      require(one[0].item<std::int64_t>() == 0, "pair");
    }
    const auto sum = at::ones({1}, at::kInt);
    communicator.all_reduce(sum);
    require(sum.item<int>() == world, "all_reduce after send");
  }
}

void check_byte_strings(ConformanceRun& run, Communicator& communicator) {
  const int world = run.world_size;
  const auto text_of = [](int rank, int length) {
    std::string text;
    for (int i = 0; i < length + rank * 3; ++i) text.push_back(static_cast<char>('a' + (i * 7 + rank) % 26));
    return text;
  };
  for (const int length : {0, 1, 100, 500, 505, 100'000}) {
    const auto all = communicator.all_gather_bytes(text_of(communicator.rank(), length), "vote");
    require(static_cast<int>(all.size()) == world, "one string per rank");
    for (int r = 0; r < world; ++r) require(all[r] == text_of(r, length), "all_gather_bytes " + std::to_string(length));
    const auto at_root = communicator.gather_bytes(text_of(communicator.rank(), length), world - 1);
    require(at_root.empty() == (communicator.rank() != world - 1), "gather_bytes is for the root");
    for (std::size_t r = 0; r < at_root.size(); ++r)
      require(at_root[r] == text_of(static_cast<int>(r), length), "gather_bytes");
    const auto spread = communicator.broadcast_bytes(communicator.rank() == 0 ? text_of(0, length) : "other", 0);
    require(spread == text_of(0, length), "broadcast_bytes");
  }
}

}  // namespace troupe::conformance
