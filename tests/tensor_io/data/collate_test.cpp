#include "tensor_io/data/collate.hpp"

#include <torch/torch.h>

#include <limits>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/bad_samples.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

at::Tensor words(const std::vector<std::int64_t>& values) { return torch::tensor(values, at::kLong); }

Example sample_of(std::int64_t index, const NamedTensors& named) { return {.named = named, .index = index}; }

std::vector<Example> three_sentences() {
  return {sample_of(4, {{"input_ids", words({7, 8})}, {"labels", words({1, 2})}}),
          sample_of(6, {{"input_ids", words({9, 3, 5})}, {"labels", words({3, 4, 5})}}),
          sample_of(9, {{"input_ids", words({})}, {"labels", words({})}})};
}

// Sentence i has i words; sample 2 can't be read where `broken` says so.
class Sentences final : public Dataset {
 public:
  explicit Sentences(bool broken) : broken_(broken) {}
  std::int64_t size() const override { return 5; }
  Example get(std::int64_t index, const SampleContext&) const override {
    if (broken_ && index == 2) throw Error(ErrorCode::bad_data, "sentence", "it can't be read", "mend it");
    return {.named = {{"input_ids", torch::full({index}, index, at::kLong)}}};
  }
  Batch collate(const std::vector<Example>& examples) const override {
    auto batch = pad_to_longest(examples, {}, name());
    std::vector<std::int64_t> numbers;
    for (const auto& example : examples) numbers.push_back(example.index);
    batch.named.emplace_back("numbers", words(numbers));
    return batch;
  }
  std::string name() const override { return "sentences"; }

 private:
  bool broken_;
};

}  // namespace

TEST_CASE("[S05] a batch gives its tensors by name, and says which there are") {
  Batch batch;
  CHECK(batch.numel() == 0);
  CHECK_THROWS_WITH(batch["input"], Catch::Contains("batch: it has no field input; it has none"));
  batch.set_fields({{"labels", words({1, 2})}, {"input", words({3, 4})}, {"target", words({5, 6})}});
  CHECK(batch["input"].is_same(batch.input));
  CHECK(batch["target"].is_same(batch.target));
  CHECK(batch["labels"].equal(words({1, 2})));
  CHECK(batch.numel() == 2);
  CHECK_THROWS_MATCHES(batch["label"], Error,
                       Catch::Predicate<Error>([](const Error& error) { return error.code() == ErrorCode::usage; }));
  CHECK_THROWS_WITH(batch["label"], Catch::StartsWith("batch: it has no field label; it has input, target, labels; "));
  batch.set_fields({{"labels", words({1, 2, 3})}});
  CHECK_FALSE(batch.input.defined());
  CHECK(batch.numel() == 3);
}

TEST_CASE("[S05] samples are stacked field by field, and count by their index where there is no input") {
  struct Rows final : Dataset {
    std::int64_t size() const override { return 9; }
    Example get(std::int64_t index, const SampleContext&) const override {
      return {.target = torch::scalar_tensor(index, at::kInt),
              .named = {{"pixels", torch::full({2, 3}, index, at::kHalf)}, {"seen", torch::tensor(index > 4)}}};
    }
  };
  const auto batch = Rows().get_batch(std::vector<std::int64_t>{3, 8, 5, 0}, {});
  CHECK(batch.numel() == 4);
  CHECK(batch.index.equal(words({3, 8, 5, 0})));
  CHECK_FALSE(batch.input.defined());
  CHECK(batch["target"].equal(torch::tensor({3, 8, 5, 0}, at::kInt)));
  CHECK(batch["pixels"].sizes() == at::IntArrayRef({4, 2, 3}));
  CHECK((batch["pixels"].scalar_type() == at::kHalf));
  CHECK(batch["seen"].equal(torch::tensor({false, true, true, false})));
}

TEST_CASE("[S05] samples that can't be stacked are refused with data set, field, samples and what differs") {
  auto samples = three_sentences();
  CHECK_THROWS_WITH(
      stack(samples, "wiki"),
      "wiki: field input_ids: sample 6 has the shape [3], sample 4 has [2]; for sequences of unequal lengths "
      "let collate return pad_to_longest(examples)");
  samples[1].index = -1;
  CHECK_THROWS_WITH(stack(samples),
                    Catch::StartsWith("data set: field input_ids: sample 1 of the batch has the shape"));
  samples = three_sentences();
  samples[2].named[1].second = words({}).to(at::kInt);
  CHECK_THROWS_WITH(pad_to_longest(samples), Catch::Contains("field labels: sample 9 is Int, sample 4 is Long"));
  samples[2].named.pop_back();
  CHECK_THROWS_WITH(stack(samples),
                    Catch::Contains("sample 9 has the fields input_ids, sample 4 has input_ids, labels"));
  CHECK_THROWS_WITH(stack({sample_of(5, {})}), Catch::Contains("sample 5 has no tensor"));
  CHECK_THROWS_WITH(stack({}), Catch::Contains("no samples"));
  CHECK_THROWS_WITH(stack({sample_of(5, {{"x", words({})}, {"x", words({})}})}),
                    Catch::Contains("field x: sample 5 has two of this name"));
}

TEST_CASE("[S05] sequences are padded to the longest of the batch, each field with its value, and masked") {
  const auto batch = pad_to_longest(three_sentences(), {.values = {{"labels", -100}}});
  CHECK(batch["input_ids"].equal(words({7, 8, 0, 9, 3, 5, 0, 0, 0}).view({3, 3})));
  CHECK(batch["labels"].equal(words({1, 2, -100, 3, 4, 5, -100, -100, -100}).view({3, 3})));
  CHECK(batch["attention_mask"].equal(
      torch::tensor({true, true, false, true, true, true, false, false, false}).view({3, 3})));

  SECTION("what has more dimensions or none, and other dtypes") {
    std::vector<Example> samples;
    for (const std::int64_t length : {2, 1})
      samples.push_back({torch::full({length, 2}, 0.5, at::kBFloat16), torch::scalar_tensor(length, at::kByte)});
    const auto padded =
        pad_to_longest(samples, {.values = {{"input", -std::numeric_limits<double>::infinity()}}, .mask = "mask"});
    CHECK((padded.input.scalar_type() == at::kBFloat16));
    CHECK(padded.input.sizes() == at::IntArrayRef({2, 2, 2}));
    CHECK(padded.input[1][0].eq(0.5).all().item<bool>());
    CHECK(padded.input[1][1].isinf().all().item<bool>());
    CHECK(padded.target.equal(torch::tensor({2, 1}, at::kByte)));
    CHECK(padded["mask"].equal(torch::tensor({true, true, true, false}).view({2, 2})));
  }
  SECTION("the mask of another field, or none") {
    auto samples = three_sentences();
    for (auto& sample : samples) sample.target = torch::scalar_tensor(1);
    CHECK(pad_to_longest(samples, {.mask_of = "labels"})["attention_mask"].sum().item<std::int64_t>() == 5);
    CHECK(pad_to_longest(samples, {.mask = ""}).fields().size() == 3);
  }
  SECTION("nothing but empty sequences") {
    const auto none = pad_to_longest({three_sentences()[2]});
    CHECK(none["input_ids"].sizes() == at::IntArrayRef({1, 0}));
    CHECK(none["attention_mask"].sizes() == at::IntArrayRef({1, 0}));
  }
}

TEST_CASE("[S05] what can't be padded is refused with the field and the option") {
  auto samples = three_sentences();
  const auto refused = [&](const PadOptions& options, const std::string& says) {
    CHECK_THROWS_WITH(pad_to_longest(samples, options, "wiki"), Catch::Contains(says));
  };
  refused({.values = {{"label", -100}}},
          "wiki: field label: PadOptions::values names it, and the samples have input_ids, labels");
  refused({.mask_of = "tokens"}, "field tokens: PadOptions::mask_of names it");
  refused({.mask = "labels"}, "field labels: the samples have a mask of this name; set PadOptions::mask to");
  refused({.values = {{"labels", 0.5}}}, "field labels: Long can't hold 0.5");
  for (auto& sample : samples) sample.target = torch::scalar_tensor(1);
  refused({}, "field target: its tensors have no dimension that could be padded; set PadOptions::mask_of");
  refused({.values = {{"target", 1}}, .mask = ""}, "have no dimension that could be padded; leave it out of");
  samples[1].target = torch::ones({2});
  refused({.mask = ""}, "field target: sample 6 has the shape [2], sample 4 has []");
  for (auto& sample : samples) sample.target = torch::ones({2, 1});
  samples[2].target = torch::ones({2, 3});
  refused({}, "sample 9 has the shape [2, 3], sample 4 has [2, 1]; only the first dimension is padded");
}

TEST_CASE("[S05] a bad sample's stand-in is collated by its own data set, with all of its fields") {
  const SkipBadSamples skips(std::make_shared<Sentences>(true));
  const auto batch = skips.get_batch(std::vector<std::int64_t>{1, 2, 4}, {});
  CHECK(batch.index.equal(words({1, 3, 4})));
  CHECK(batch.numel() == 3);
  CHECK(batch["numbers"].equal(batch.index));
  const auto whole = Sentences(false).get_batch(std::vector<std::int64_t>{1, 3, 4}, {});
  CHECK(batch["input_ids"].equal(whole["input_ids"]));
  CHECK(batch["attention_mask"].equal(whole["attention_mask"]));
}
