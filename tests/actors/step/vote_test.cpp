#include "actors/step/vote.hpp"

#include <limits>

#include "tests/catch.hpp"

using namespace troupe;

namespace {
const std::vector<std::string> kNames{"conv.weight", "fc.weight", "fc.bias"};

std::vector<Vote> votes(std::size_t n) {
  std::vector<Vote> all(n);
  for (auto& vote : all) {
    vote.step = 7;
    vote.layout_hash = 99;
    vote.loss_sum = 8;
    vote.samples = 4;
    vote.used = {true, true, false};
  }
  return all;
}
}  // namespace

TEST_CASE("a vote survives its wire format") {
  auto vote = votes(1)[0];
  vote.not_finite_parameter = 2;
  vote.stop_signal = 15;
  vote.correct = 3;
  vote.parameter_hash = 0xfedcba9876543210;
  vote.own = {1.5f, 2.5f, 3.5f};
  vote.elements = 12;
  vote.gradient_divisor = 64;
  vote.made_by_hook = 1;
  vote.used = {true, false, true, true, false, false, true, false, true};
  std::vector<std::uint8_t> bytes(vote_bytes(9));
  encode_vote(vote, bytes);
  const auto back = decode_vote(bytes, 9);
  CHECK(back.used == vote.used);
  CHECK(back.step == 7);
  CHECK(back.layout_hash == 99);
  CHECK(back.not_finite_parameter == 2);
  CHECK(back.stop_signal == 15);
  CHECK(back.correct == 3);
  CHECK(back.elements == 12);
  CHECK(back.gradient_divisor == 64);
  CHECK(back.made_by_hook == 1);
  CHECK(back.parameter_hash == 0xfedcba9876543210);
  CHECK(back.own.data_ms == 1.5f);
  CHECK(back.own.forward_ms == 2.5f);
  CHECK(back.own.backward_ms == 3.5f);
}

TEST_CASE("[T03] the loss of a step is the mean over the samples of all ranks") {
  auto all = votes(2);
  all[1].loss_sum = 4;
  all[1].samples = 1;
  const auto decision = decide(all, kNames, {true, true});
  CHECK(decision.commit);
  CHECK(decision.loss == Approx(12.0 / 5));
  CHECK(decision.samples == 5);
}

TEST_CASE("[T03] the loss of sums is their mean over the elements of all ranks, and the gradient gets that factor") {
  auto all = votes(3);
  for (auto& vote : all) vote.gradient_divisor = 64;
  all[0].elements = 3;
  all[1].elements = 13;
  all[1].loss_sum = 39;
  all[2].elements = Vote::kNoLoss;  // an earlier stage of a pipeline
  all[2].loss_sum = all[2].samples = 0;
  for (auto& vote : all) vote.gradient_norm = 2;
  const auto decision = decide(all, kNames, {true, true});
  CHECK(decision.commit);
  CHECK(decision.loss == Approx(47.0 / 16));
  CHECK(decision.max_loss == 3);
  CHECK(decision.samples == 8);
  CHECK(decision.gradient_factor == 4);
  CHECK(decision.gradient_norm == 8);
  CHECK(decide(votes(2), kNames, {true, true}).gradient_factor == 1);
}

TEST_CASE("[T03] a step in which no element counts is skipped, unless its loss is not finite") {
  auto all = votes(2);
  for (auto& vote : all) vote.elements = 0;
  const auto skipped = decide(all, kNames, {true, true});
  CHECK_FALSE(skipped.commit);
  CHECK_FALSE(skipped.not_finite);
  CHECK_THAT(skipped.reason, Catch::Contains("no element"));
  CHECK(skipped.loss == 0);
  all[1].not_finite_loss = 1;
  CHECK_THAT(decide(all, kNames, {false, false}).reason, Catch::Contains("not finite"));
}

TEST_CASE("[T03] a sum on one rank and a mean on another end the job, and both are named") {
  auto all = votes(3);
  all[0].elements = all[2].elements = Vote::kMeans;
  all[1].elements = 5;
  try {
    (void)decide(all, kNames, {true, true});
    FAIL("must throw");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::mismatch);
    CHECK_THAT(error.what(), Catch::Contains("rank 1 gave the sum") && Catch::Contains("ranks 0, 2 a mean") &&
                                 Catch::Contains("Loss::sum"));
  }
}

TEST_CASE("[D06] a parameter counts as used when one rank used it") {
  auto all = votes(2);
  all[1].used = {false, true, true};
  CHECK(decide(all, kNames, {true, true}).used == std::vector<bool>{true, true, true});
  all[1].used = {false, true, false};
  CHECK(decide(all, kNames, {true, true}).used == std::vector<bool>{true, true, false});
}

TEST_CASE("[T09] a gradient that is not finite is named by rank, parameter and step, and all ranks decide alike") {
  auto all = votes(3);
  all[2].not_finite_parameter = 1;
  const auto skipped = decide(all, kNames, {false, false});
  CHECK_FALSE(skipped.commit);
  CHECK(skipped.culprit == 2);
  CHECK_THAT(skipped.reason, Catch::Contains("fc.weight"));
  try {
    decide(all, kNames, {true, true});
    FAIL("must throw");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::not_finite);
    CHECK(error.report().rank == 2);
    CHECK(error.report().step == 7);
    CHECK_THAT(error.what(), Catch::Contains("fc.weight"));
  }
  try {
    decide(all, kNames, {true, true}, 6);  // the numbers are a step old
    FAIL("must throw");
  } catch (const Error& error) {
    CHECK(error.report().step == 6);
    CHECK_THAT(error.what(), Catch::Contains("lower lr"));
  }
  all[2].made_by_hook = 1;
  CHECK_THROWS_WITH(decide(all, kNames, {true, true}), Catch::Contains("set comm_hook to bf16 or none"));
  all[2].not_finite_parameter = -1;
  all[1].not_finite_loss = 1;
  CHECK_THAT(decide(all, kNames, {false, false}).reason, Catch::Contains("the loss"));
}

TEST_CASE("[T09] a sum that overflows although each gradient is finite is not applied") {
  auto all = votes(2);
  all[0].gradient_norm = all[1].gradient_norm = std::numeric_limits<double>::infinity();
  CHECK_FALSE(decide(all, kNames, {false, false}).commit);
}

TEST_CASE("[D13] the vote names the rank whose layout, step or data set differs") {
  auto all = votes(3);
  all[1].layout_hash = 5;
  CHECK_THROWS_WITH(decide(all, kNames, {true, true}), Catch::Contains("rank 1 used a different parameter layout"));
  all = votes(3);
  all[2].step = 8;
  CHECK_THROWS_WITH(decide(all, kNames, {true, true}), Catch::Contains("rank 2 voted on step 8"));
  all = votes(3);
  for (auto& vote : all) vote.dataset_size = 64;
  all[0].dataset_size = 63;
  CHECK_THROWS_WITH(
      decide(all, kNames, {true, true}),
      Catch::Contains(
          "rank 0 drew from a data set of 63 samples, the others from one of 64; put the same files on every host"));
  all = votes(3);
  for (auto& vote : all) vote.data_hash = 7;
  CHECK_NOTHROW(decide(all, kNames, {true, true}));
  all[2].data_hash = 8;
  CHECK_THROWS_WITH(decide(all, kNames, {true, true}), Catch::Contains("rank 2 read different files from the others") &&
                                                           Catch::Contains("put the same files on every host"));
}

TEST_CASE("a stop asked for on one rank ends the step on all") {
  auto all = votes(2);
  all[1].stop_signal = 2;
  CHECK(decide(all, kNames, {true, true}).stop_signal == 2);
}

TEST_CASE("[L04] ranks that leave are named by the decision, and the job does not stop for them") {
  auto all = votes(4);
  all[1].stop_signal = all[3].stop_signal = Vote::kLeaves;
  auto decision = decide(all, kNames, {true, true});
  CHECK(decision.stop_signal == 0);
  CHECK((decision.leaving == std::vector<int>{1, 3}));
  all[2].stop_signal = 15;
  CHECK(decide(all, kNames, {true, true}).stop_signal == 15);
}
