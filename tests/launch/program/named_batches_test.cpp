// Batches of named tensors through a whole job: a small masked language model beside a plain LibTorch loop.
#include <map>
#include <mutex>

#include "launch/loop/loop_micro_batches.hpp"
#include "launch/program/job.hpp"
#include "tensor_io/data/collate.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

using namespace troupe;

namespace {

constexpr std::int64_t kVocabulary = 11, kMask = 10, kSentences = 24;

// Sentence i: 2 to 6 words, of which some are masked and to be found: `labels` has them, and -100 elsewhere. No input.
class MaskedSentences final : public Dataset {
 public:
  std::int64_t size() const override { return kSentences; }
  Example get(std::int64_t index, const SampleContext&) const override {
    auto ids = (torch::arange(2 + index * 3 % 5) * 3 + index * 7) % kMask;
    const auto masked = (torch::arange(ids.size(0)) + index) % 3 == 0;
    const auto labels = torch::where(masked, ids, torch::full_like(ids, -100));
    return {.named = {{"input_ids", ids.masked_fill(masked, kMask)}, {"labels", labels}}};
  }
  Batch collate(const std::vector<Example>& examples) const override {
    return pad_to_longest(examples, {.values = {{"labels", -100}}}, name());
  }
  std::string name() const override { return "masked sentences"; }
};

// A word's scores come from itself and the mean of its sentence, which padding is no part of.
struct WordFinderImpl : torch::nn::Module {
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(kVocabulary, 6));
  torch::nn::Linear mix = register_module("mix", torch::nn::Linear(6, 6));
  torch::nn::Linear scores = register_module("scores", torch::nn::Linear(6, kVocabulary));
  WordFinderImpl() { to(torch::kDouble); }

  at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask) {
    const auto known = words(ids), there = mask.unsqueeze(-1).to(known.scalar_type());
    const auto mean = (known * there).sum(1, /*keepdim=*/true) / there.sum(1, /*keepdim=*/true);
    return scores(torch::tanh(mix(known + mean)));
  }
};
TORCH_MODULE(WordFinder);

at::Tensor summed_loss(const at::Tensor& scores, const at::Tensor& labels) {
  namespace F = torch::nn::functional;
  return F::cross_entropy(scores.flatten(0, 1), labels.flatten(),
                          F::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(-100));
}

Config small_job() {
  Config config;
  config.batch_size = 8;
  config.epochs = 2;
  config.shuffle = false;
  config.lr = 0.1;
  config.momentum = 0.9;
  config.weight_decay = 0;
  config.num_workers = 2;
  return config;
}

// One sentence after the other, without padding.
std::map<std::string, at::Tensor> plain_loop() {
  auto model = [] {
    const auto building = seed_model(small_job().seed);
    return WordFinder();
  }();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const MaskedSentences data;
  for (std::int64_t step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    auto sum = torch::zeros({}, at::kDouble);
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < 8; ++i) {
      const auto named = data.get((step * 8 + i) % kSentences, {}).named;
      const auto ids = named[0].second.unsqueeze(0), labels = named[1].second.unsqueeze(0);
      sum = sum + summed_loss(model->forward(ids, torch::ones_like(ids)), labels);
      count += labels.ne(-100).sum().item<std::int64_t>();
    }
    (sum / static_cast<double>(count)).backward();
    optimizer.step();
  }
  std::map<std::string, at::Tensor> trained;
  for (const auto& item : model->named_parameters()) trained[item.key()] = item.value().detach();
  return trained;
}

}  // namespace

TEST_CASE("[S05] a masked language model on named, padded batches is a plain loop's, on two ranks") {
  auto config = small_job();
  config.strategy = GENERATE("ddp", "fsdp");
  config.grad_accum_steps = GENERATE(1, 2);
  INFO(config.strategy << ", " << config.grad_accum_steps << " micro-batches");
  const auto expected = plain_loop();
  std::mutex mutex;
  const auto errors = testing::run_program(2, config, [&](Rank& rank) {
    auto model = rank.distribute([] { return WordFinder(); });
    const auto optimizer = rank.make_optimizer(*model);
    for (const auto& batch : rank.loader(std::make_shared<MaskedSentences>())) {
      const auto loss = summed_loss(model->forward(batch["input_ids"], batch["attention_mask"]), batch["labels"]);
      rank.backward(Loss::sum(loss, batch["labels"].ne(-100).sum().item<std::int64_t>()));
      if (batch.last_of_step) rank.step(*optimizer);
    }
    const auto trained = rank.state_dict(*optimizer);
    std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : trained) {
      INFO(name);
      CHECK(torch::allclose(tensor, expected.at(name), 1e-12, 1e-12));
    }
    if (rank.is_main()) CHECK(trained.size() == expected.size());
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("[S05] a name that a batch has not ends the job with those that it has") {
  const auto errors = testing::run_program(1, small_job(), [&](Rank& rank) {
    auto model = rank.distribute([] { return WordFinder(); });
    for (const auto& batch : rank.loader(std::make_shared<MaskedSentences>())) (void)batch["tokens"];
  });
  CHECK_THAT(errors.at(0), Catch::Contains("batch: it has no field tokens; it has input_ids, labels, attention_mask"));
}

TEST_CASE("[L03] all fields of a batch are a graph's inputs, and other names are another kind") {
  const auto batch_of = [](const NamedTensors& fields) {
    Batch batch;
    batch.set_fields(fields);
    batch.index = torch::arange(2);
    batch.counted = 2;
    return batch;
  };
  const auto a = torch::full({2}, 1.0), b = torch::full({2}, 2.0), c = torch::full({2}, 3.0);
  const auto batch = batch_of({{"input", a}, {"mask", b}, {"labels", c}});
  const std::function<Loss(const Batch&)> forward = [&](const Batch& of_graph) {
    CHECK(of_graph.input.eq(10).all().item<bool>());
    CHECK_FALSE(of_graph.target.defined());
    CHECK_FALSE(of_graph.index.defined());
    CHECK(of_graph.counted == 2);
    return Loss((of_graph["mask"] + 100 * of_graph["labels"]).sum());
  };
  const auto graphed = graphed_micro_batch(batch, forward);
  REQUIRE(graphed.inputs.size() == 3);
  CHECK(graphed.inputs[2].is_same(c));
  CHECK(graphed.samples == 2);
  CHECK(graphed.forward({a * 10, b * 10, c * 10}).value.item<double>() == 2 * (20 + 100 * 30));
  CHECK(graphed.kind == graphed_micro_batch(batch_of({{"input", c}, {"mask", a}, {"labels", b}}), forward).kind);
  CHECK(graphed.kind != graphed_micro_batch(batch_of({{"input", a}, {"labels", c}, {"mask", b}}), forward).kind);
  CHECK(graphed.kind != graphed_micro_batch(batch_of({{"target", a}, {"mask", b}, {"labels", c}}), forward).kind);
}

TEST_CASE("[D7] a model that does not take its first batch is named, with the batch's shapes") {
  Job job;
  job.model = [](const Config&) { return torch::nn::Conv2d(1, 2, 3).ptr(); };
  job.data = [](const Config&) {
    return Datasets{std::make_shared<TensorDataset>(at::zeros({8, 64}), at::zeros({8}, at::kLong), "flat rows"), {}};
  };
  int calls = 0;
  bool takes_one = false;
  job.loss = [&](torch::nn::Module& model, const Batch& batch, const Config&) -> Loss {
    const auto input = takes_one && calls++ == 0 ? batch.input.view({-1, 1, 8, 8}) : batch.input;
    return model.as<torch::nn::Conv2dImpl>()->forward(input).mean();
  };
  auto config = small_job();
  config.batch_size = 4;
  config.run_dir = "";
  config.save_every = -1;
  const auto first = testing::run_program(1, config, [&](Rank& rank) { train(job, rank); });
  CHECK_THAT(first.at(0), Catch::Contains("conv2d") && Catch::Contains("Conv2dImpl takes what the data set gives") &&
                              Catch::Contains("flat rows: input [4, 64], target [4]"));
  takes_one = true;
  const auto second = testing::run_program(1, config, [&](Rank& rank) { train(job, rank); });
  CHECK_THAT(second.at(0), Catch::Contains("conv2d") && !Catch::Contains("the first batch"));
}
