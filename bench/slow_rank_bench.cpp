// One rank that is slower than the others, on a machine with fewer cores than ranks: what bench/slow_rank.py runs.
//
//   troupe launch --nproc 4 bench_slow_rank --pace_ms 30 --slow 3 --strategy parameter_server --server_shares 2 …
//
// examples/gpt's model and text, and examples/custom_strategy's gossip. Each forward also waits pace_ms for each
// sample, as for an accelerator that does the work, and so no core is short. The last rank is `slow` times slower than
// the others: it waits (slow - 1) times as long again as its own part of the batch took, the wait and its thread's
// processor time.
#include <chrono>
#include <ctime>
#include <thread>

#include "examples/custom_strategy/gossip.hpp"
#include "examples/gpt/gpt.hpp"
#include "tensor_io/data/token_dataset.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"

namespace bench_slow_rank {

namespace {

using troupe::Config;
using Milliseconds = std::chrono::duration<double, std::milli>;

void declare(Config& config) {
  config.declare("block_size", std::int64_t{64}, "tokens of a sample");
  config.declare("n_layer", std::int64_t{4}, "transformer layers");
  config.declare("n_embd", std::int64_t{256}, "channels");
  config.declare("pace_ms", 30.0, "what a forward waits for each sample");
  config.declare("slow", 3.0, "how many times as slow the last rank is");
}

Milliseconds thread_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

class Pace {
 public:
  Pace(double pace_ms, double slow) : pace_(pace_ms), slow_(slow) {}
  /// In each forward.
  void wait(std::int64_t samples) {
    const auto now = thread_time();
    const auto pace = static_cast<double>(samples) * pace_;
    const auto own = pace + (now - last_);  // the processor time is that of the part before
    last_ = now;
    std::this_thread::sleep_for(pace + (slow_ - 1) * own);
  }

 private:
  Milliseconds pace_, last_ = thread_time();
  double slow_;
};

thread_local std::unique_ptr<Pace> pace;  // a rank's thread's

}  // namespace

int run(int argc, char** argv) {
  register_gossip();
  troupe::Job job;
  job.declare = declare;
  job.model = [](const Config& config) {
    GptOptions options;
    options.block_size = config.get<std::int64_t>("block_size");
    options.n_layer = config.get<std::int64_t>("n_layer");
    options.n_embd = config.get<std::int64_t>("n_embd");
    return Gpt(options).ptr();
  };
  job.data = [](const Config& config) {
    troupe::TokenOptions options;
    options.block_size = config.get<std::int64_t>("block_size");
    options.vocab_size = 256;
    options.paths = {GPT_DOCUMENTS "/README.md", GPT_DOCUMENTS "/docs"};
    auto [train, held_out] = troupe::read_tokens(options);
    return troupe::Datasets{train, held_out};
  };
  job.loss = [](torch::nn::Module& model, const troupe::Batch& batch, const Config&) {
    if (model.is_training()) pace->wait(batch.input.size(0));
    const auto scores = model.as<GptImpl>()->forward(batch.input).flatten(0, 1);
    return troupe::Loss{torch::nn::functional::cross_entropy(scores, batch.target.flatten())};
  };
  return troupe::main(
      argc, argv,
      [&](troupe::Rank& rank) {
        const bool last = rank.rank() + 1 == rank.world_size();
        const auto& config = rank.config();
        pace = std::make_unique<Pace>(config.get<double>("pace_ms"), last ? config.get<double>("slow") : 1);
        troupe::train(job, rank);
      },
      declare);
}

}  // namespace bench_slow_rank
