// What `troupe doctor` starts on the hosts of a list, one rank on each: collectives, and a step whose gradients are
// known. Rank 0 prints a line for each finding: `check <tab> ok|fail <tab> what was found <tab> remedy`.
#include <cmath>
#include <cstdio>

#include "launch/loop/rank.hpp"
#include "launch/process/formatted.hpp"
#include "tensor_io/base/steady_time.hpp"

namespace {

using troupe::formatted;
using troupe::Rank;

void print_check(Rank& rank, const char* check, bool good, const std::string& found, const std::string& remedy) {
  if (!rank.is_main()) return;
  std::printf("%s\t%s\t%s\t%s\n", check, good ? "ok" : "fail", found.c_str(), good ? "" : remedy.c_str());
  std::fflush(stdout);
}

// Every rank's number is in every element of the sum, which floats hold exactly.
void check_sum(Rank& rank) {
  const int n = rank.world_size();
  auto wrong = at::zeros({1}, at::kLong);
  for (const std::int64_t numel : {1, 1000, 1'000'000}) {
    auto tensor = at::full({numel}, rank.rank() + 1, at::kFloat);
    rank.all_reduce(tensor);
    wrong += tensor.ne(n * (n + 1) / 2).sum();
  }
  rank.all_reduce(wrong);
  print_check(rank, "collective", wrong.item<std::int64_t>() == 0,
              wrong.item<std::int64_t>() == 0
                  ? formatted("%d ranks add up 1, 1,000 and 1,000,000 numbers over %s", n,
                              std::string(rank.communicator().backend()).c_str())
                  : formatted("%lld sums are wrong", static_cast<long long>(wrong.item<std::int64_t>())),
              "check the memory and the network of the hosts, one after the other with --hosts");
}

// How fast the slowest link lets an all-reduce be: the bytes of the tensor, each way, in a second.
void measure_pace(Rank& rank) {
  auto tensor = at::ones({4 << 20}, at::kFloat);
  rank.all_reduce(tensor, troupe::ReduceOp::avg, "warm-up");
  constexpr int kTimes = 3;
  const auto started = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimes; ++i) rank.all_reduce(tensor, troupe::ReduceOp::avg, "pace");
  const double seconds = troupe::seconds_since(started) / kTimes;
  print_check(rank, "pace", true,
              formatted("all_reduce of 16 MiB takes %.1f ms, %.0f Mbit/s", seconds * 1e3, 16 * 8.388608 / seconds), "");
}

// A model's gradients over all ranks against those of one process with the whole batch.
void check_gradients(Rank& rank) {
  const auto make = [] {
    torch::manual_seed(7);
    return torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 4));
  };
  const int n = rank.world_size();
  auto whole = make(), shared = make();
  const auto generator = at::detail::createCPUGenerator(11);
  const auto input = torch::randn({4 * n, 8}, generator), target = torch::randn({4 * n, 4}, generator);
  torch::mse_loss(whole->forward(input), target).backward();

  rank.distribute(shared);
  auto optimizer = rank.make_optimizer(*shared);
  const auto part = [&](const at::Tensor& all) { return all.narrow(0, 4 * rank.rank(), 4); };
  rank.backward(troupe::Loss(torch::mse_loss(shared->forward(part(input)), part(target))), 4, 1);
  const auto report = rank.step(*optimizer);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
    const auto &expected = whole->parameters()[i].grad(), &found = shared->parameters()[i].grad();
    difference = std::max(difference, (expected - found).abs().max().item<double>());
    norm = std::max(norm, expected.abs().max().item<double>());
  }
  auto worst = torch::tensor({difference / norm}, at::kDouble);
  rank.all_reduce(worst, troupe::ReduceOp::max);
  const bool good = report.committed && worst.item<double>() < 1e-5;
  print_check(rank, "gradients", good,
              formatted("those of %d ranks and of one process differ by %.1e of the largest", n, worst.item<double>()),
              "compare the hosts' processors, LibTorch builds and memory: one computes other numbers");
}

}  // namespace

int main(int argc, char** argv) {
  return troupe::main(argc, argv, [](Rank& rank) {
    check_sum(rank);
    measure_pace(rank);
    check_gradients(rank);
  });
}
