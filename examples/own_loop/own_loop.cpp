// A training loop of one's own, as one has it with DDP, that goes on when a rank dies.
//
//   build/release/launch/troupe launch --nproc 2 build/release/examples/own_loop/own_loop --optimizer adamw --lr 0.003
//
// expect: a line every 100 steps with the share of its points that all ranks together got right, ending above 0.9. Kill
// one of the two processes meanwhile (`kill -9`): the lines go on as if nothing had happened.
#include <troupe/troupe.hpp>

#include <cmath>
#include <cstdio>
#include <map>

namespace {

// Is a point inside of a circle?
class Circle : public troupe::Dataset {
 public:
  std::int64_t size() const override { return 8192; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const double x = static_cast<double>(index * 7919 % 10007) / 5003.5 - 1,
                 y = static_cast<double>(index * 104729 % 10009) / 5004.5 - 1;
    return {torch::tensor({x, y}, torch::kFloat), torch::tensor(std::int64_t{std::hypot(x, y) < 0.8})};
  }
};

torch::nn::Sequential make_model() {
  namespace nn = torch::nn;
  return nn::Sequential(nn::Linear(2, 64), nn::Tanh(), nn::Linear(64, 64), nn::Tanh(), nn::Linear(64, 2));
}

void train(troupe::Rank& rank) {
  auto model = rank.distribute(make_model);
  auto optimizer = rank.make_optimizer(*model);
  rank.keep_checkpoints(*optimizer);  // --resume latest goes on where a run stopped, --save_every 100 saves on the way
  struct Counted {
    double right = 0, seen = 0;
  };
  std::map<std::int64_t, Counted> counted;  // this rank's, by hundreds of steps

  // Collectives between steps go in here. If a rank dies meanwhile, all do it again, its replacement too, and perhaps
  // as other ranks of a smaller world; so it leaves what it starts from as it is.
  rank.between_steps([&](std::int64_t steps_done) {
    if (steps_done % 100 != 0) return;
    const auto [right, seen] = counted[steps_done / 100 - 1];
    auto all = torch::tensor({right, seen}, torch::kDouble);
    rank.all_reduce(all);
    if (rank.is_main()) {
      std::printf("step %lld  right %.3f of %.0f  (%d ranks)\n", static_cast<long long>(steps_done),
                  all[0].item<double>() / all[1].item<double>(), all[1].item<double>(), rank.world_size());
      std::fflush(stdout);
    }
  });

  for (const auto& batch : rank.loader(std::make_shared<Circle>())) {
    const auto scores = model->forward(batch.input);
    rank.backward(torch::nn::functional::cross_entropy(scores, batch.target));
    const auto report = rank.step(*optimizer);
    if (report.repeat)
      continue;  // a rank was lost: nothing was applied, and the loader hands out the step's batches once more
    // What the program keeps beside model and optimizer is counted once the step is done, so it counts each step once.
    // (What a lost rank had counted is lost with it.)
    auto& sums = counted[report.step / 100];
    sums.right += scores.argmax(1).eq(batch.target).sum().item<double>();
    sums.seen += static_cast<double>(batch.numel());
  }
}

}  // namespace

int main(int argc, char** argv) { return troupe::main(argc, argv, train); }
