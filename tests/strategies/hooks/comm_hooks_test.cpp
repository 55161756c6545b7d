#include "strategies/hooks/comm_hooks.hpp"

#include <torch/torch.h>

#include <atomic>
#include <limits>

#include "actors/strategy/strategy.hpp"
#include "strategies/hooks/power_sgd.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tests/catch.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/rank_threads.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

std::shared_ptr<CommHook> hook(const std::string& name, std::int64_t rank = 2, std::int64_t start_step = 0) {
  register_comm_hooks();
  StrategyOptions options;
  options.comm_hook = name;
  options.powersgd_rank = rank;
  options.powersgd_start_step = start_step;
  return make_comm_hook(options);
}

GroupOptions shm(int world_size) { return {{"shm", "shm"}, world_size}; }

/// A bucket that holds copies of these tensors, each at 64 bytes and in its own strides.
BucketView bucket_of(const std::vector<at::Tensor>& tensors, std::int64_t step = 0) {
  BucketView bucket;
  bucket.label = "bucket 0";
  bucket.step = step;
  std::int64_t numel = 0;
  for (const auto& t : tensors) numel += (t.numel() + 31) / 32 * 32;
  bucket.flat = at::zeros({numel}, tensors[0].options());
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bucket.gradients.push_back(
        bucket.flat.narrow(0, begin, tensors[i].numel()).as_strided(tensors[i].sizes(), tensors[i].strides()));
    bucket.gradients.back().copy_(tensors[i]);
    bucket.names.push_back("p" + std::to_string(i));
    begin += (tensors[i].numel() + 31) / 32 * 32;
  }
  return bucket;
}

bool same_on_all_ranks(const at::Tensor& tensor, Communicator& communicator) {
  const auto mine = tensor.contiguous();
  for (const auto& bytes :
       communicator.all_gather_bytes({static_cast<const char*>(mine.const_data_ptr()), mine.nbytes()})) {
    if (bytes.size() != mine.nbytes() || std::memcmp(bytes.data(), mine.const_data_ptr(), bytes.size()) != 0)
      return false;
  }
  return true;
}

// Rank r's gradients of a step; full rank, different everywhere.
std::vector<at::Tensor> gradients(int rank, std::int64_t step) {
  return {at::sin(pattern({40, 30}, 3 * rank + 1) * static_cast<double>(step + 2)), pattern({50}, rank + 2),
          pattern({3, 2}, rank + 5)};
}

std::vector<at::Tensor> mean_gradients(int world_size, std::int64_t step) {
  auto mean = gradients(0, step);
  for (int r = 1; r < world_size; ++r) {
    const auto theirs = gradients(r, step);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = mean[i] + theirs[i];
  }
  for (auto& tensor : mean) tensor = tensor / world_size;
  return mean;
}

}  // namespace

TEST_CASE("[D10] none, fp16 and bf16 give the average, the same bits on all ranks") {
  const auto [name, tolerance] = GENERATE(table<std::string, double>({{"none", 1e-6}, {"fp16", 1e-3}, {"bf16", 1e-2}}));
  const auto world_size = GENERATE(1, 2, 3);
  const std::string backend = GENERATE("shm", "gloo");
  INFO(name << ", " << world_size << " ranks, " << backend);
  run_ranks({{backend, backend}, world_size}, [&, name = name, tolerance = tolerance](Communicator& communicator) {
    const auto h = hook(name);
    for (std::int64_t step = 0; step < 3; ++step) {
      auto bucket = bucket_of(gradients(communicator.rank(), step), step);
      h->reduce(bucket, communicator);
      const auto mean = mean_gradients(world_size, step);
      for (std::size_t i = 0; i < mean.size(); ++i)
        require(max_difference(bucket.gradients[i], mean[i]) < tolerance, "the average of tensor " + std::to_string(i));
      require(same_on_all_ranks(bucket.flat, communicator), "the same bits on all ranks");
    }
  });
}

TEST_CASE("[D10] fp16 and bf16 send two bytes a number, and fp16 does not overflow where the average would not") {
  const auto [name, dtype] =
      GENERATE(table<std::string, at::ScalarType>({{"fp16", at::kHalf}, {"bf16", at::kBFloat16}}));
  run_ranks(shm(4), [name = name, dtype = dtype](Communicator& communicator) {
    auto bucket = bucket_of({at::full({64}, 50'000.0)});
    hook(name)->reduce(bucket, communicator);
    require(max_difference(bucket.flat, at::full({64}, 50'000.0)) < 200, "50,000 averaged over 4 ranks");
    bool seen = false;
    for (const auto& record : communicator.ledger().snapshot()) {
      if (record.kind != CollectiveKind::all_reduce) continue;
      seen = true;
      require(static_cast<at::ScalarType>(record.dtype) == dtype && record.numel == 64, "one all-reduce of 64 halves");
    }
    require(seen, "an all-reduce");
  });
}

TEST_CASE("[D10] PowerSGD recovers a mean gradient of its rank exactly and sends a fraction of it") {
  run_ranks(shm(3), [](Communicator& communicator) {
    const auto u = pattern({64, 2}, 1), v = pattern({2, 48}, 4);
    const auto h = hook("powersgd", 2);
    auto bucket = bucket_of({u.mm(v) * (communicator.rank() + 1)});
    h->reduce(bucket, communicator);
    require(max_difference(bucket.gradients[0], u.mm(v) * 2) < 1e-4, "rank 2 is enough");
    std::int64_t sent = 0;
    for (const auto& record : communicator.ledger().snapshot())
      sent += record.kind == CollectiveKind::all_reduce ? record.numel : 0;
    require(sent > 0 && sent < 64 * 48 / 10, "less than a tenth is sent, not " + std::to_string(sent));
  });
}

TEST_CASE("[D10] PowerSGD is the same bits on all ranks and averages small tensors exactly") {
  const auto world_size = GENERATE(1, 2, 4);
  run_ranks(shm(world_size), [&](Communicator& communicator) {
    const auto h = hook("powersgd");
    for (std::int64_t step = 0; step < 4; ++step) {
      auto bucket = bucket_of(gradients(communicator.rank(), step), step);
      h->reduce(bucket, communicator);
      require(same_on_all_ranks(bucket.flat, communicator), "the same bits on all ranks");
      const auto mean = mean_gradients(world_size, step);
      for (const std::size_t whole : {1, 2})
        require(max_difference(bucket.gradients[whole], mean[whole]) < 1e-6, "vectors and tiny matrices travel whole");
      require(max_difference(bucket.gradients[0], mean[0]) > 1e-3, "the matrix is approximated");
    }
  });
}

TEST_CASE("[D10] PowerSGD loses nothing: what it sent and what it still owes add up to the gradients") {
  run_ranks(shm(2), [](Communicator& communicator) {
    const auto h = hook("powersgd");
    auto sent = at::zeros({40, 30}), given = at::zeros({40, 30});
    for (std::int64_t step = 0; step < 10; ++step) {
      auto bucket = bucket_of(gradients(communicator.rank(), step), step);
      h->reduce(bucket, communicator);
      sent += bucket.gradients[0];
      given += mean_gradients(2, step)[0];
    }
    auto owed = at::Tensor();
    for (const auto& [name, value] : h->state()) {
      if (name == "p0.error") owed = value.clone();
    }
    require(owed.defined() && owed.abs().max().item<float>() > 1e-3, "an error is kept");
    communicator.all_reduce(owed, ReduceOp::avg);
    require(max_difference(sent + owed, given) < 1e-4, "sent + owed == given");
  });
}

TEST_CASE("[D10] PowerSGD's error feedback sends a constant gradient of full rank in the long run") {
  run_ranks(shm(2), [](Communicator& communicator) {
    const auto gradient = gradients(0, 3)[0];
    const auto relative = [&](const at::Tensor& value) {
      return ((value - gradient).norm() / gradient.norm()).item<double>();
    };
    const auto with = hook("powersgd"), without = hook("powersgd");
    auto sum_with = at::zeros_like(gradient), sum_without = at::zeros_like(gradient);
    const int steps = 60;
    for (int step = 0; step < steps; ++step) {
      auto bucket = bucket_of({gradient});
      with->reduce(bucket, communicator);
      sum_with += bucket.gradients[0];
      NamedTensors forgetful = without->state();
      for (auto& [name, value] : forgetful) {
        if (name.ends_with(".error")) value.zero_();
      }
      auto other = bucket_of({gradient});
      without->reduce(other, communicator);
      sum_without += other.gradients[0];
    }
    require(relative(sum_with / steps) < 0.2, "with feedback: " + std::to_string(relative(sum_with / steps)));
    require(relative(sum_without / steps) > 2 * relative(sum_with / steps),
            "without feedback: " + std::to_string(relative(sum_without / steps)));
  });
}

TEST_CASE("[D10] PowerSGD goes on from its saved state bit for bit") {
  run_ranks(shm(2), [](Communicator& communicator) {
    const auto run = [&](CommHook& h, std::int64_t begin, std::int64_t end) {
      at::Tensor last;
      for (auto step = begin; step < end; ++step) {
        auto bucket = bucket_of(gradients(communicator.rank(), step), step);
        h.reduce(bucket, communicator);
        last = bucket.flat.clone();
      }
      return last;
    };
    const auto whole = hook("powersgd"), before = hook("powersgd"), after = hook("powersgd"), fresh = hook("powersgd");
    const auto expected = run(*whole, 0, 6);
    run(*before, 0, 3);
    after->load_state(before->state());
    run(*before, 3, 4);  // what was loaded is a copy
    require(at::equal(run(*after, 3, 6), expected), "the same bits after a resume");
    require(!at::equal(run(*fresh, 3, 6), expected), "without the state it would differ");
  });
  CHECK_THROWS_WITH(hook("powersgd")->load_state({{"p0.momentum", at::zeros({2, 2})}}), Catch::Contains("p0.momentum"));
}

TEST_CASE("[D10] PowerSGD forgets a step that was given up") {
  run_ranks(shm(2), [](Communicator& communicator) {
    const auto h = hook("powersgd", 2), undisturbed = hook("powersgd", 2);
    for (std::int64_t step = 0; step < 5; ++step) {
      if (step == 1 || step == 3) {
        auto given_up = bucket_of(gradients(communicator.rank(), step + 7), step);
        h->reduce(given_up, communicator);
        h->roll_back(step);
      }
      auto bucket = bucket_of(gradients(communicator.rank(), step), step),
           expected = bucket_of(gradients(communicator.rank(), step), step);
      h->reduce(bucket, communicator);
      undisturbed->reduce(expected, communicator);
      require(bucket.flat.equal(expected.flat), "the bits of step " + std::to_string(step));
    }
  });
}

TEST_CASE("[D10] a NaN gradient reaches all ranks and leaves PowerSGD's error feedback as it was") {
  run_ranks(shm(2), [](Communicator& communicator) {
    const auto h = hook("powersgd");
    const auto reduce = [&](std::int64_t step, bool broken) {
      auto tensors = gradients(communicator.rank(), step);
      if (broken && communicator.rank() == 1) tensors[0][3][4] = std::numeric_limits<float>::quiet_NaN();
      auto bucket = bucket_of(tensors, step);
      h->reduce(bucket, communicator);
      return bucket;
    };
    reduce(0, false);
    NamedTensors before;
    for (const auto& [name, value] : h->state()) before.emplace_back(name, value.clone());
    require(at::isnan(reduce(1, true).gradients[0]).any().item<bool>(),
            "NaN on rank " + std::to_string(communicator.rank()));
    const auto after = h->state();
    for (std::size_t i = 0; i < after.size(); ++i)
      require(at::equal(after[i].second, before[i].second), after[i].first + " is unchanged");
    require(at::isfinite(reduce(2, false).flat).all().item<bool>(), "the next step is finite");
  });
}

TEST_CASE("[D10] PowerSGD starts when it is told to, and again after a gradient of zeros") {
  run_ranks(shm(2), [](Communicator& communicator) {
    const auto h = hook("powersgd", 2, 2);
    for (std::int64_t step = 0; step < 4; ++step) {
      auto bucket = bucket_of(gradients(communicator.rank(), step), step);
      h->reduce(bucket, communicator);
      const bool exact = max_difference(bucket.gradients[0], mean_gradients(2, step)[0]) < 1e-5;
      require(exact == (step < 2), "whole before step 2, approximated from then on");
    }
    const auto zeros_first = hook("powersgd", 1);
    auto nothing = bucket_of({at::zeros({30, 20})});
    zeros_first->reduce(nothing, communicator);
    require(nothing.flat.abs().max().item<float>() == 0, "zeros stay zeros");
    const auto rank_one = pattern({30, 1}, 1).mm(pattern({1, 20}, 2));
    auto something = bucket_of({rank_one});
    zeros_first->reduce(something, communicator);
    require(max_difference(something.gradients[0], rank_one) < 1e-4, "it finds the next gradient");
  });
}

TEST_CASE("[D10] PowerSGD takes gradients of any strides and dtype") {
  run_ranks(shm(2), [](Communicator& communicator) {
    const auto images = pattern({32, 8, 3, 3}, 1).contiguous(at::MemoryFormat::ChannelsLast);
    auto bucket = bucket_of({images});
    // Rank 8 of a matrix (32, 72) that repeats: see that values land where they belong.
    const auto low = pattern({32, 1, 1, 1}, 2).mul(pattern({1, 8, 3, 3}, 3)).contiguous(at::MemoryFormat::ChannelsLast);
    bucket.gradients[0].copy_(low);
    hook("powersgd", 1)->reduce(bucket, communicator);
    require(max_difference(bucket.gradients[0], low) < 1e-4, "channels last");
    auto half = bucket_of(
        {(pattern({40, 1}, 2).mm(pattern({1, 30}, 3))).to(at::kBFloat16), pattern({50}, 1).to(at::kBFloat16)});
    const auto expected = half.gradients[0].clone();
    hook("powersgd", 1)->reduce(half, communicator);
    require(max_difference(half.gradients[0], expected) < 0.01, "bf16");
  });
}

TEST_CASE("[D10] ranks of one process may register hooks and look them up at the same time") {
  std::atomic<int> found{0};
  run_ranks(shm(4), [&](Communicator& communicator) {
    for (int i = 0; i < 50; ++i) {
      const auto name = "own" + std::to_string(communicator.rank()) + "." + std::to_string(i);
      register_comm_hook(name, [](const StrategyOptions&) { return hook("none"); });
      if (hook(name) && hook("fp16")) ++found;
    }
  });
  CHECK(found == 200);
}

TEST_CASE("[D10] a user's own hook is found by name and an unknown one is named") {
  struct Half final : CommHook {
    void reduce(BucketView& bucket, Communicator& communicator) override {
      communicator.all_reduce(bucket.flat, ReduceOp::sum, bucket.label);
      bucket.flat.mul_(0.5);
    }
  };
  register_comm_hook("half_of_the_sum", [](const StrategyOptions&) { return std::make_shared<Half>(); });
  run_ranks(shm(3), [](Communicator& communicator) {
    auto bucket = bucket_of({at::full({10}, 2.0)});
    hook("half_of_the_sum")->reduce(bucket, communicator);
    require(max_difference(bucket.gradients[0], at::full({10}, 3.0)) == 0, "3 ranks' twos, halved");
  });
  CHECK_THROWS_WITH(hook("powersdg"), Catch::Contains("powersdg") && Catch::Contains("powersgd"));
  CHECK_THROWS_WITH(hook("powersgd", 0), Catch::Contains("powersgd_rank"));
}

TEST_CASE("[D10] training converges with every hook as it does without") {
  // Two ranks, each with half of the samples: which of three sectors a point is in.
  const auto train = [](const std::string& name) {
    double loss_at_end = 0;
    run_ranks(shm(2), [&](Communicator& communicator) {
      torch::nn::Linear first(12, 48), second(48, 48), last(48, 3);
      NamedTensors parameters;
      std::int64_t salt = 0;
      for (const auto& [prefix, layer] : {std::pair{"first", first}, {"second", second}, {"last", last}}) {
        for (const auto& item : layer->named_parameters()) {
          torch::NoGradGuard no_grad;
          item.value().copy_(
              pattern(item.value().sizes().vec(), ++salt) *
              (item.value().dim() == 2 ? 1.7 / std::sqrt(static_cast<double>(item.value().size(1))) : 0));
          parameters.emplace_back(std::string(prefix) + "." + item.key(), item.value());
        }
      }
      OptimizerOptions options;
      options.lr = 0.1;
      auto optimizer = make_optimizer(options, {{parameters}});
      const auto all = at::sin(pattern({64, 12}, 77) * 5);
      const auto labels =
          at::cat(
              {all.narrow(1, 0, 4).sum(1, true), all.narrow(1, 4, 4).sum(1, true), all.narrow(1, 8, 4).sum(1, true)}, 1)
              .argmax(1);
      const auto input = all.narrow(0, communicator.rank() * 32, 32),
                 target = labels.narrow(0, communicator.rank() * 32, 32);
      const auto h = hook(name);
      at::Tensor loss;
      for (std::int64_t step = 0; step < 80; ++step) {
        loss = torch::nn::functional::cross_entropy(last(torch::tanh(second(torch::tanh(first(input))))), target);
        std::vector<at::Tensor> leaves;
        for (const auto& [key, parameter] : parameters) leaves.push_back(parameter);
        const auto own = torch::autograd::grad({loss}, leaves);
        auto bucket = bucket_of(own, step);
        h->reduce(bucket, communicator);
        for (std::size_t i = 0; i < leaves.size(); ++i) leaves[i].mutable_grad() = bucket.gradients[i];
        optimizer->step(options.lr);
      }
      auto mean = loss.detach().clone().view(1);
      communicator.all_reduce(mean, ReduceOp::avg);
      if (communicator.rank() == 0) loss_at_end = mean.item<double>();
      for (const auto& [key, parameter] : parameters)
        require(same_on_all_ranks(parameter.detach(), communicator), key + " is the same on all ranks");
    });
    return loss_at_end;
  };
  static const double plain = train("none");
  CHECK(plain < 0.25);
  const std::string name = GENERATE("fp16", "bf16", "powersgd");
  INFO(name);
  CHECK(train(name) < plain + 0.1);
}
