#include "tensor_io/communicator/conformance/conformance_checks.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "tensor_io/communicator/conformance/rank_threads.hpp"

// What every back end must compute. Failures that only some of them can name are in the tests.
namespace troupe::conformance {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                     at::kInt,   at::kLong,   at::kByte, at::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};

// Small whole numbers: every reduction of eight of them is exact in every type, whatever the order.
std::int64_t value_of(int rank, std::int64_t i, at::ScalarType dtype, ReduceOp op) {
  const std::int64_t mixed = (rank * 5 + i * 3 + (i >> 8) * 7) % 11;
  if (dtype == at::kBool) return mixed % 3 == 0;
  if (op == ReduceOp::product) return 1 + mixed % 2;
  return dtype == at::kByte ? mixed : mixed - 5;
}

at::Tensor input_of(int rank, std::int64_t numel, at::ScalarType dtype, ReduceOp op = ReduceOp::sum,
                    std::int64_t first = 0) {
  const auto values = at::empty({numel}, at::kLong);
  auto* data = values.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < numel; ++i) data[i] = value_of(rank, first + i, dtype, op);
  return values.to(dtype);
}

// Element by element in 64-bit integers, then into the type.
at::Tensor reduced(int world_size, std::int64_t numel, at::ScalarType dtype, ReduceOp op, std::int64_t first = 0) {
  std::vector<std::int64_t> values(numel);
  for (std::int64_t i = 0; i < numel; ++i) {
    std::int64_t total = value_of(0, first + i, dtype, op);
    for (int r = 1; r < world_size; ++r) {
      const auto next = value_of(r, first + i, dtype, op);
      switch (op) {
        case ReduceOp::min: total = std::min(total, next); break;
        case ReduceOp::max: total = std::max(total, next); break;
        case ReduceOp::product: total *= next; break;
        default: total += next;
      }
    }
    values[i] = total;
  }
  auto whole = at::from_blob(values.data(), {numel}, at::kLong).clone();
  if (op != ReduceOp::avg) return whole.to(dtype);
  // Divided in the type that the sum is kept in, rounded once.
  if (dtype == at::kDouble) return whole.to(at::kDouble) / world_size;
  return (whole.to(at::kFloat) / world_size).to(dtype);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

// A group of one has nothing to add.
bool sums_by_host(const ConformanceRun& run) { return run.options.sums_by_host && run.world_size > 1; }

// To the bit; but a mean of 16-bit numbers is rounded on its way between hosts, too.
bool is_reduced(const ConformanceRun& run, const at::Tensor& found, const at::Tensor& expected, ReduceOp op) {
  if (sums_by_host(run) && op == ReduceOp::avg && found.element_size() == 2)
    return found.scalar_type() == expected.scalar_type() &&
           at::allclose(found.to(at::kFloat), expected.to(at::kFloat), 1e-2, 1e-2);
  return same_bits(found, expected);
}

std::string case_name(at::ScalarType dtype, std::int64_t numel, std::string_view what) {
  return std::string(what) + " of " + std::to_string(numel) + " " + c10::toString(dtype);
}

// A tensor where this run wants it. `windows` is memory from allocate(), handed out again for each case.
at::Tensor placed(const at::Tensor& values, const at::Tensor& windows) {
  if (!windows.defined()) return values.clone();
  auto place = windows.narrow(0, 0, static_cast<std::int64_t>(values.nbytes())).view(values.scalar_type());
  place.copy_(values);
  return place;
}

at::Tensor windows_for(const ConformanceRun& run, Communicator& communicator, std::int64_t bytes) {
  return run.options.in_allocated_memory ? communicator.allocate(bytes, at::kByte) : at::Tensor();
}

void check_all_reduce(ConformanceRun& run, Communicator& communicator) {
  const auto windows = windows_for(run, communicator, 1 << 20);
  for (const auto dtype : kTypes) {
    for (const auto op : kOps) {
      if (op == ReduceOp::avg && !at::isFloatingType(dtype)) continue;
      for (const std::int64_t numel : {0, 1, 63, 20'011}) {
        const auto tensor = placed(input_of(communicator.rank(), numel, dtype, op), windows);
        communicator.all_reduce(tensor, op, "case");
        require(is_reduced(run, tensor, reduced(run.world_size, numel, dtype, op), op),
                case_name(dtype, numel, to_string(op)));
      }
    }
  }
}

void check_many_chunks(ConformanceRun& run, Communicator& communicator) {
  const auto windows = windows_for(run, communicator, 8 << 20);
  for (const std::int64_t numel : {131'072, 1'300'003}) {
    const auto tensor = placed(input_of(communicator.rank(), numel, at::kFloat), windows);
    communicator.all_reduce(tensor, ReduceOp::sum);
    require(same_bits(tensor, reduced(run.world_size, numel, at::kFloat, ReduceOp::sum)),
            case_name(at::kFloat, numel, "sum"));
  }
}

void check_all_reduce_update(ConformanceRun& run, Communicator& communicator) {
  if (!run.options.makes_updates) return;
  const auto check = [&](std::int64_t numel, bool shares_moments) {
    const auto memory = [&] { return communicator.allocate(numel, at::kFloat); };
    const auto of_moments = [&] {
      const auto shared = shares_moments ? communicator.allocate_shared(numel, at::kFloat) : at::Tensor();
      return shared.defined() ? shared : memory();
    };
    const auto values = [&](std::uint64_t seed) {
      return at::empty({numel}).normal_(0, 1, at::detail::createCPUGenerator(seed));
    };
    ReducedUpdate update{
        {memory().copy_(values(1)), of_moments().copy_(values(2)), of_moments().copy_(values(3).square_())},
        {memory(), of_moments(), of_moments()},
        {},
        numel > 50'000};
    UpdateRule rule;
    rule.kind = UpdateRule::Kind::adamw;
    rule.has_first = true;
    rule.first_weight = 0.1F;
    rule.beta2 = 0.9F;
    rule.second_weight = 0.1F;
    rule.eps = 1e-3F;
    rule.step_size = 0.01F;
    const auto third = numel / 48 * 16;
    update.runs.push_back({0, third, rule});
    rule.keep = 0.5F;
    update.runs.push_back({numel - third, numel, rule});
    auto expected = update;
    expected.next = {at::zeros({numel}), at::zeros({numel}), at::zeros({numel})};
    const auto mean = reduced(run.world_size, numel, at::kFloat, ReduceOp::avg);
    apply_update(expected, {mean.const_data_ptr<float>()}, 1, copies_here(expected.next), 0, numel);
    const auto before = update.state.parameter.clone();
    communicator.all_reduce_update(memory().copy_(input_of(communicator.rank(), numel, at::kFloat)), update, "case");
    communicator.barrier();
    require(same_bits(update.next.parameter, expected.next.parameter), case_name(at::kFloat, numel, "parameters"));
    require(same_bits(update.next.first, expected.next.first), case_name(at::kFloat, numel, "first moments"));
    require(same_bits(update.next.second, expected.next.second), case_name(at::kFloat, numel, "second moments"));
    require(same_bits(update.state.parameter, before), "the state stays");
  };
  for (const std::int64_t numel : {0, 16, 1'024, 100'000}) {
    check(numel, false);
    check(numel, true);
  }
}

void check_mixed_memory(ConformanceRun&, Communicator& communicator) {
  const auto window = communicator.allocate(50'000, at::kFloat);
  for (int who = 0; who < 3; ++who) {
    const auto values = input_of(communicator.rank(), 40'000, at::kFloat);
    // one rank of its own memory, the others at different offsets of the window
    const auto tensor =
        communicator.rank() == who ? values.clone() : window.narrow(0, communicator.rank() * 17, 40'000).copy_(values);
    communicator.all_reduce(tensor, ReduceOp::sum);
    require(same_bits(tensor, reduced(3, 40'000, at::kFloat, ReduceOp::sum)), "mixed memory");
  }
  const auto tensor =
      window.narrow(0, communicator.rank() * 17, 40'000).copy_(input_of(communicator.rank(), 40'000, at::kFloat));
  communicator.all_reduce(tensor, ReduceOp::avg);
  require(same_bits(tensor, reduced(3, 40'000, at::kFloat, ReduceOp::avg)), "windows at different offsets");
}

void check_reduce_scatter(ConformanceRun& run, Communicator& communicator) {
  const int world = run.world_size;
  for (const auto dtype : kTypes) {
    for (const auto op : kOps) {
      if (op == ReduceOp::avg && !at::isFloatingType(dtype)) continue;
      for (const std::int64_t numel : {0, 1, 37, 5'003}) {
        const auto input = input_of(communicator.rank(), numel * world, dtype, op);
        const auto output = at::empty({numel}, dtype);
        communicator.reduce_scatter(output, input, op);
        require(is_reduced(run, output, reduced(world, numel, dtype, op, numel * communicator.rank()), op),
                case_name(dtype, numel, to_string(op)));
      }
    }
  }
  // into its own slice, many chunks
  const std::int64_t numel = 300'007;
  const auto input = input_of(communicator.rank(), numel * world, at::kFloat);
  const auto output = input.narrow(0, numel * communicator.rank(), numel);
  communicator.reduce_scatter(output, input);
  require(same_bits(output, reduced(world, numel, at::kFloat, ReduceOp::sum, numel * communicator.rank())), "in place");
}

void check_reduce(ConformanceRun& run, Communicator& communicator) {
  for (const auto dtype : kTypes) {
    for (const std::int64_t numel : {0, 1, 63, 30'011}) {
      const int root = static_cast<int>(numel % run.world_size);
      const auto input = input_of(communicator.rank(), numel, dtype, ReduceOp::max);
      const auto tensor = input.clone();
      communicator.reduce(tensor, root, ReduceOp::max);
      require(
          same_bits(tensor, communicator.rank() == root ? reduced(run.world_size, numel, dtype, ReduceOp::max) : input),
          case_name(dtype, numel, "reduce"));
    }
  }
  const std::int64_t large = 700'001;
  const auto tensor = input_of(communicator.rank(), large, at::kFloat);
  communicator.reduce(tensor, 0, ReduceOp::sum);
  if (communicator.rank() == 0)
    require(same_bits(tensor, reduced(run.world_size, large, at::kFloat, ReduceOp::sum)), "large reduce");
}

void check_gathers(ConformanceRun& run, Communicator& communicator) {
  const int world = run.world_size;
  const int rank = communicator.rank();
  const auto everyone = [&](std::int64_t numel, at::ScalarType dtype) {
    std::vector<at::Tensor> all;
    for (int r = 0; r < world; ++r) all.push_back(input_of(r, numel, dtype));
    return at::cat(all);
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
      std::vector<at::Tensor> expected;
      for (int r = 0; r < world; ++r) expected.push_back(input_of(r, numel, dtype, ReduceOp::sum, numel * rank));
      require(same_bits(exchanged, at::cat(expected)), name("all_to_all"));

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
    std::vector<at::Tensor> all;
    for (int r = 0; r < 3; ++r) all.push_back(input_of(r, numel, at::kFloat, ReduceOp::sum, round));
    require(same_bits(output, at::cat(all)), "all_gather in windows");
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

void check_sums(ConformanceRun& run, Communicator& communicator) {
  const int world = run.world_size;
  const auto windows = windows_for(run, communicator, 1 << 20);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const std::int64_t numel = 30'001;
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < world; ++r) {
      std::vector<float> values(numel);
      std::uint32_t state = 12345 + r;
      for (auto& value : values) {
        state = state * 1664525u + 1013904223u;
        value = std::ldexp(static_cast<float>(state >> 8) / 8388608.0f - 1.0f, static_cast<int>(state % 9) - 4);
      }
      inputs.push_back(at::from_blob(values.data(), {numel}, at::kFloat).to(dtype, false, true));
    }
    auto expected = inputs[0].to(at::kFloat);
    for (int r = 1; r < world; ++r) expected = expected + inputs[r].to(at::kFloat);
    at::Tensor first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto tensor = placed(inputs[communicator.rank()], windows);
      communicator.all_reduce(tensor);
      if (repeat == 0) first = tensor.clone();
      require(same_bits(tensor, first), "the same bits each time");
    }
    if (sums_by_host(run)) {
      // Between hosts the sum of a host is one term, and crosses the network in the tensor's type.
      std::vector<std::pair<std::string, at::Tensor>> hosts;
      for (int r = 0; r < world; ++r) {
        const auto name = run.options.host(r);
        const auto known =
            std::find_if(hosts.begin(), hosts.end(), [&](const auto& host) { return host.first == name; });
        const auto value = inputs[r].to(at::kFloat);
        known == hosts.end() ? void(hosts.emplace_back(name, value)) : void(known->second = known->second + value);
      }
      auto of_hosts = hosts[0].second.to(dtype).to(at::kFloat);
      for (std::size_t h = 1; h < hosts.size(); ++h) of_hosts = of_hosts + hosts[h].second.to(dtype).to(at::kFloat);
      require(same_bits(first, of_hosts.to(dtype)), "a host's sum rounded once, and that of all once more");
      require(at::allclose(first.to(at::kFloat), expected, 1e-2, 0.2), "close to the sum");
    } else {
      require(same_bits(first, expected.to(dtype)), "added in f32 in rank order, rounded once");
    }
    const auto everyone = at::empty({numel * world}, dtype);
    communicator.all_gather(everyone, first);
    for (int r = 0; r < world; ++r)
      require(same_bits(everyone.narrow(0, r * numel, numel), first), "the same bits on all ranks");
  }
}

void check_averages(ConformanceRun& run, Communicator& communicator) {
  const auto tensor = at::full({100}, 60'000, at::kHalf);
  communicator.all_reduce(tensor, ReduceOp::avg);
  require(at::allclose(tensor.to(at::kFloat), at::full({100}, 60'000.0F), 1e-2), "all_reduce");
  const auto output = at::empty({7}, at::kHalf);
  communicator.reduce_scatter(output, at::full({7 * run.world_size}, 60'000, at::kHalf), ReduceOp::avg);
  require(at::allclose(output.to(at::kFloat), at::full({7}, 60'000.0F), 1e-2), "reduce_scatter");
}

void check_nan(ConformanceRun&, Communicator& communicator) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto op : {ReduceOp::min, ReduceOp::max}) {
      const auto tensor = at::full({40}, communicator.rank(), dtype);
      tensor[communicator.rank() * 7] = NAN;
      communicator.all_reduce(tensor, op);
      for (int i = 0; i < 40; ++i) {
        require(std::isnan(tensor[i].item<double>()) == (i % 7 == 0 && i < 21), "NaN at " + std::to_string(i));
      }
    }
  }
}

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
  communicator.barrier();
  if (communicator.rank() == 0) {
    ErrorReport reason;
    reason.code = ErrorCode::aborted;
    reason.cause = "the suite stops it";
    communicator.abort(reason);
    const auto own = error_of([&] { communicator.barrier(); });
    require(own && own->code == ErrorCode::aborted, "calls after abort() throw its reason");
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto failure = error_of([&] { communicator.barrier(); });
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  require(failure.has_value(), "a collective of a group that a rank has aborted throws Error");
  require(waited.count() < 5, "it throws soon after, not at the deadline");
}

}  // namespace

const std::vector<ConformanceCheck>& conformance_checks() {
  static const std::vector<ConformanceCheck> checks{
      {"all_reduce", "every operation in every type and size", {1, 2, 3, 5, 8}, false, check_all_reduce},
      {"many_chunks", "each element is added once, wherever the tensor lies", {2, 3, 4}, false, check_many_chunks},
      {"all_reduce_update",
       "an update here of the average, on all ranks",
       {1, 2, 3, 5},
       false,
       check_all_reduce_update},
      {"mixed_memory", "memory from allocate() meets other memory", {3}, true, check_mixed_memory},
      {"reduce_scatter", "each rank gets its reduced slice", {1, 2, 3, 8}, false, check_reduce_scatter},
      {"reduce", "the root has the result, the others' tensors stay", {1, 2, 5}, false, check_reduce},
      {"gathers",
       "all_gather, gather, scatter, all_to_all and broadcast in every type and size",
       {1, 2, 3, 8},
       false,
       check_gathers},
      {"all_gather_into_allocated",
       "all_gather into memory from allocate()",
       {3},
       true,
       check_all_gather_into_allocated},
      {"send_recv", "between any two ranks, in order", {2, 3, 6}, false, check_send_recv},
      {"byte_strings", "of any length, by rank", {1, 2, 4}, false, check_byte_strings},
      {"sums", "the same bits on all ranks, each time, in rank order", {2, 3, 4}, false, check_sums},
      {"averages", "the average of 16-bit numbers whose sum is infinite", {2, 5}, false, check_averages},
      {"nan", "min and max keep a NaN", {3}, true, check_nan},
      {"split", "groups that work side by side, ordered by key", {1, 2, 5}, false, check_split},
      {"slow_group", "slow ranks hold up only their group", {4}, true, check_slow_group},
      {"allocate",
       "memory is zeroed, aligned, and outlives the communicator",
       {3},
       true,
       check_allocate,
       allocated_memory_stays},
      {"allocate_shared",
       "memory is one on all ranks, or undefined on all",
       {3},
       true,
       check_allocate_shared,
       shared_memory_stays},
      {"ledger", "what was done, with step and a shortened label", {2}, true, check_ledger},
      {"deadline",
       "a wait for a rank that stays away ends",
       {3},
       true,
       check_deadline,
       nullptr,
       std::chrono::milliseconds(500)},
      {"abort", "abort() ends the waits of all ranks", {3}, true, check_abort},
  };
  return checks;
}

}  // namespace troupe::conformance
