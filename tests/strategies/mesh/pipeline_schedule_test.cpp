// Pure functions of pipelines: schedules, balance, meshes.
#include "strategies/mesh/pipeline_schedule.hpp"

#include "strategies/mesh/mesh.hpp"
#include "strategies/mesh/stage_balance.hpp"
#include "strategies/mesh/stage_cut.hpp"
#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

using InstructionKind = StageInstruction::Kind;

struct NamedShape {
  std::string name;
  PipelineShape shape;
};

std::vector<NamedShape> many_shapes() {
  std::vector<NamedShape> all;
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (const int micro_batches : {1, 2, 3, 4, 5, 7, 8, 9, 16, 24, 33}) {
      for (const char* name : {"gpipe", "1f1b", "zero_bubble"}) all.push_back({name, {ranks, micro_batches, 1}});
      for (int chunks = 1; chunks <= 4; ++chunks) {
        if (micro_batches % ranks == 0) all.push_back({"interleaved", {ranks, micro_batches, chunks}});
      }
    }
  }
  return all;
}

std::string refusal_of_schedule(const std::vector<StageSchedule>& lists, const PipelineShape& shape) {
  try {
    check_schedule(lists, shape);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string mesh_refusal(const std::string& text, int ranks) {
  try {
    (void)parse_mesh(text, ranks, "pp");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE(
    "[X02] all schedules run everything once and never deadlock, for 1 to 9 ranks, 1 to 33 micro-batches and 1 to 4 "
    "chunks") {
  const auto shapes = many_shapes();
  REQUIRE(shapes.size() > 300);
  for (const auto& [name, shape] : shapes) {
    const auto lists = make_schedule(name, shape);  // checks
    INFO(name << " " << shape.ranks << " ranks, " << shape.micro_batches << " micro-batches, " << shape.chunks
              << " chunks");
    std::size_t instructions = 0;
    for (const auto& list : lists) instructions += list.size();
    const auto parts = name == "zero_bubble" ? 3 : 2;
    CHECK((instructions == static_cast<std::size_t>(parts * shape.ranks * shape.micro_batches * shape.chunks)));
  }
}

TEST_CASE("[X02] a schedule that would deadlock, or leaves something out, is refused, naming rank and instruction") {
  const PipelineShape shape{2, 2, 1};
  const StageInstruction f0{InstructionKind::forward, 0, 0}, f1{InstructionKind::forward, 1, 0};
  const StageInstruction b0{InstructionKind::backward, 0, 0}, b1{InstructionKind::backward, 1, 0};
  const StageInstruction i0{InstructionKind::backward_input, 0, 0}, w0{InstructionKind::backward_weight, 0, 0};
  CHECK((refusal_of_schedule({{f0, f1, b0, b1}, {f0, b0, f1, b1}}, shape).empty()));
  // Rank 0 wants the first backward before it has sent what rank 1 does first.
  const auto deadlock = refusal_of_schedule({{f0, b0, f1, b1}, {f1, b1, f0, b0}}, shape);
  CHECK_THAT(deadlock, Catch::Contains("wait for each other") &&
                           Catch::Contains("rank 0 in its backward of micro-batch 0") &&
                           Catch::Contains("rank 1 in its forward of micro-batch 1"));
  CHECK_THAT(refusal_of_schedule({{f0, f1, b0}, {f0, b0, f1, b1}}, shape),
             Catch::Contains("rank 0: micro-batch 1") && Catch::Contains("backward"));
  CHECK_THAT(refusal_of_schedule({{f0, b0, b1, f1}, {f0, b0, f1, b1}}, shape),
             Catch::Contains("backward of micro-batch 1, chunk 0 comes twice or out"));
  CHECK_THAT(refusal_of_schedule({{f0, f0, f1, b0, b1}, {f0, b0, f1, b1}}, shape),
             Catch::Contains("forward of micro-batch 0"));
  CHECK_THAT(refusal_of_schedule({{f0, w0, i0, f1, b1}, {f0, b0, f1, b1}}, shape),
             Catch::Contains("backward (weight) of micro-batch 0"));
  CHECK_THAT(refusal_of_schedule({{f0, i0, f1, b1}, {f0, b0, f1, b1}}, shape),
             Catch::Contains("not through its backward"));
  CHECK_THAT(refusal_of_schedule({{{InstructionKind::forward, 2, 0}}, {}}, shape),
             Catch::Contains("of 2 micro-batches"));
  CHECK_THAT(refusal_of_schedule({{f0}}, shape), Catch::Contains("lists for 1 ranks, of 2"));
  CHECK_THROWS_WITH(make_schedule("2f2b", shape), Catch::Contains("no schedule '2f2b'") &&
                                                      Catch::Contains("known: 1f1b, ") &&
                                                      Catch::Contains("zero_bubble"));
  CHECK_THROWS_WITH(make_schedule("interleaved", {2, 3, 2}), Catch::Contains("grad_accum_steps"));
  CHECK_THROWS_WITH(make_schedule("1f1b", {2, 4, 2}), Catch::Contains("pipeline_chunks is 2"));
}

TEST_CASE("[X02] on 4 stages of equal cost each schedule's bubble is its formula's within 10 %, on virtual time") {
  const StageCosts costs{1, 1, 1};
  for (const int micro_batches : {4, 8, 16, 32}) {
    for (const auto& [name, chunks] : std::vector<std::pair<std::string, int>>{
             {"gpipe", 1}, {"1f1b", 1}, {"interleaved", 2}, {"interleaved", 4}, {"zero_bubble", 1}}) {
      const PipelineShape shape{4, micro_batches, chunks};
      const auto found = run_on_virtual_time(make_schedule(name, shape), shape, costs).bubble();
      const auto formula = bubble_formula(name, shape, costs);
      INFO(name << " with " << micro_batches << " micro-batches, " << chunks << " chunks: " << found << ", formula "
                << formula);
      CHECK((std::abs(found - formula) <= 0.1 * formula));
    }
  }
}

TEST_CASE(
    "[X02] 1f1b and zero_bubble hold as many activations as the pipeline is long, gpipe as there are micro-batches") {
  const PipelineShape shape{4, 16, 1};
  const auto held = [&](const char* name) { return run_on_virtual_time(make_schedule(name, shape), shape).held; };
  CHECK((held("gpipe") == std::vector<int>{16, 16, 16, 16}));
  CHECK((held("1f1b") == std::vector<int>{4, 3, 2, 1}));
  CHECK((held("zero_bubble") == std::vector<int>{4, 3, 2, 1}));
}

TEST_CASE("[X02] a registered schedule is known by its name, and checked") {
  register_schedule("one_by_one", "a micro-batch goes all the way before the next one comes",
                    [](const PipelineShape& shape) {
                      StageSchedule list;
                      for (int m = 0; m < shape.micro_batches; ++m) {
                        list.push_back({InstructionKind::forward, m, 0});
                        list.push_back({InstructionKind::backward, m, 0});
                      }
                      return std::vector<StageSchedule>(static_cast<std::size_t>(shape.ranks), list);
                    });
  CHECK((schedules().count("one_by_one") == 1));
  const PipelineShape shape{4, 8, 1};
  const auto lists = make_schedule("one_by_one", shape);
  CHECK((std::abs(run_on_virtual_time(lists, shape).bubble() - 0.75) < 1e-12));  // one rank of four works at a time
}

TEST_CASE("[X02] blocks are cut into stages so that the largest stage is as small as can be") {
  CHECK((balance_stages({1, 1, 1, 1, 1, 1, 1, 1}, 4) == std::vector<int>{0, 2, 4, 6, 8}));
  CHECK((balance_stages({1, 1, 1, 1, 6}, 2) == std::vector<int>{0, 4, 5}));
  CHECK((balance_stages({9, 1, 1, 1, 1, 1, 1}, 3) == std::vector<int>{0, 1, 4, 7}));
  CHECK((balance_stages({2, 2, 2}, 3) == std::vector<int>{0, 1, 2, 3}));
  CHECK((balance_stages({0, 0, 0, 0}, 2).size() == 3));
  CHECK_THROWS_WITH(balance_stages({1, 1}, 3), Catch::Contains("2 blocks can't be cut into 3 stages"));
  // Against all cuts of 7 blocks into 3.
  const std::vector<double> costs{3, 1, 4, 1, 5, 9, 2};
  double least = 1e9;
  const auto sum = [&](int a, int b) {
    double total = 0;
    for (int i = a; i < b; ++i) total += costs[static_cast<std::size_t>(i)];
    return total;
  };
  for (int a = 1; a < 6; ++a) {
    for (int b = a + 1; b < 7; ++b) least = std::min(least, std::max({sum(0, a), sum(a, b), sum(b, 7)}));
  }
  const auto found = balance_stages(costs, 3);
  CHECK((std::max({sum(found[0], found[1]), sum(found[1], found[2]), sum(found[2], found[3])}) == least));
  CHECK((parse_costs("1,2.5,0", 3) == std::vector<double>{1, 2.5, 0}));
  CHECK_THROWS_WITH(parse_costs("1,2", 3), Catch::Contains("2 costs, and the model has 3 blocks"));
  CHECK_THROWS_WITH(parse_costs("1,x,2", 3), Catch::Contains("'x'"));
}

TEST_CASE("[X02] a cut says which rank has which block, and everything is on one rank without a pipeline") {
  StageCut cut({"first", "layers.1", "layers.10", "last"}, 2, 1);
  CHECK(cut.block_of("layers.10.weight") == 2);
  CHECK(cut.block_of("layers.1.inner.weight") == 1);
  CHECK(cut.block_of("layers.1") == -1);
  CHECK(cut.block_of("tokens.weight") == -1);
  CHECK_FALSE(cut.is_cut());
  CHECK(cut.describe() == "stages of blocks to be measured");
  cut.cut_by({3, 1, 1, 1});
  CHECK((cut.borders() == std::vector<int>{0, 1, 4}));
  CHECK(cut.describe() == "stages of 1+3 blocks");
  CHECK(cut.first_block(1) == 1);
  CHECK(cut.end_block(1) == 4);
  for (int block = 0; block < 4; ++block) {
    for (int rank = 0; rank < 2; ++rank) CHECK(cut.holds(rank, block) == (rank == (block > 0)));
  }
  CHECK((cut.holds(0, -1) && cut.holds(1, -1)));

  StageCut chunks({"a", "b", "c", "d"}, 2, 2);
  chunks.cut_at({0, 1, 2, 3, 4});
  CHECK(chunks.stages() == 4);
  CHECK(chunks.stage_of(/*rank=*/1, /*chunk=*/1) == 3);
  CHECK((chunks.holds(0, 2) && chunks.holds(1, 3)));

  StageCut whole;
  whole.cut_at({0, 0});
  CHECK(whole.stages() == 1);
  CHECK(whole.holds(0, whole.block_of("layers.1.weight")));
}

TEST_CASE("[X04] a mesh gives each rank one place, and neighbours in tp neighbouring ranks") {
  const auto mesh = parse_mesh("dp=2,tp=2,pp=2", 8, "pp");
  CHECK((mesh == Mesh{2, 2, 2}));
  for (int rank = 0; rank < 8; ++rank) CHECK((mesh.rank_at(mesh.place_of(rank)) == rank));
  CHECK((mesh.place_of(5) == Mesh::Place{0, 1, 1}));
  CHECK((mesh.replicas_of(5) == std::vector<int>{5, 7}));
  CHECK((parse_mesh("", 4, "pp") == Mesh{1, 1, 4}));
  CHECK((parse_mesh("", 4, "tp") == Mesh{1, 4, 1}));
  CHECK((parse_mesh("pp=2", 8, "pp") == Mesh{4, 1, 2}));
  const auto four = parse_mesh("fsdp=2,tp=2,pp=2", 16, "pp");
  CHECK((four == Mesh{2, 2, 2, 2}));
  CHECK((four.to_string() == "dp=2,fsdp=2,tp=2,pp=2"));
  for (int rank = 0; rank < 16; ++rank) CHECK((four.rank_at(four.place_of(rank)) == rank));
  CHECK((four.place_of(11) == Mesh::Place{0, 1, 1, 1}));
  CHECK((four.replicas_of(11) == std::vector<int>{11, 15}));
}

TEST_CASE("[X04] a mesh that can't be is refused on one line with the reason") {
  CHECK_THAT(mesh_refusal("dp=2,pp=2", 8), Catch::Contains("is for 4 ranks, and the job has 8"));
  CHECK_THAT(mesh_refusal("pp=3", 8), Catch::Contains("the job has 8"));
  CHECK_THAT(mesh_refusal("pp=2,xp=2", 8), Catch::Contains("'xp' is not one of dp, fsdp, tp, pp"));
  CHECK_THAT(mesh_refusal("pp=two", 8), Catch::Contains("pp needs a number"));
  CHECK_THAT(mesh_refusal("pp=0", 8), Catch::Contains("pp needs a number"));
  CHECK_THAT(mesh_refusal("pp", 8), Catch::Contains("pp needs a number"));
  CHECK_THAT(mesh_refusal("pp=2,pp=4", 8), Catch::Contains("pp appears twice"));
  CHECK_THAT(mesh_refusal("dp=2,fsdp=2,pp=2", 16), Catch::Contains("is for 8 ranks, and the job has 16"));
  CHECK_THAT(mesh_refusal("dp=32768,fsdp=32768,tp=32768,pp=32768", 16),
             Catch::Contains("is for 1152921504606846976 ranks"));
  for (const auto* text : {"dp=2,pp=2", "fsdp=3", "pp=", "=2", ",,"})
    CHECK((mesh_refusal(text, 8).find('\n') == std::string::npos));
}
