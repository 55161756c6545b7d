// What collectives that add must compute.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "tensor_io/communicator/conformance/conformance_checks.hpp"
#include "tensor_io/communicator/conformance/conformance_values.hpp"
#include "tensor_io/communicator/conformance/rank_threads.hpp"

namespace troupe::conformance {

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

}  // namespace troupe::conformance
