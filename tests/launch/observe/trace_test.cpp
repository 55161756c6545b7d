// What a trace is made of: the setting, clocks, threads, kernels for HTA, files.
#include <sys/resource.h>

#include <unistd.h>
#include <csignal>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "launch/config/config.hpp"
#include "launch/config/profile_setting.hpp"
#include "launch/observe/kineto_activities.hpp"
#include "launch/observe/trace_file.hpp"
#include "launch/observe/trace_json.hpp"
#include "tensor_io/communicator/clock_offset.hpp"
#include "tensor_io/communicator/collective_ledger.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/trace_checks.hpp"

using namespace troupe;
using testing::ParsedTrace;

namespace {

using Kind = TraceEvent::Kind;

TraceEvent event_of(Kind kind, const std::string& name, std::int64_t begin_us, std::int64_t end_us) {
  TraceEvent event;
  event.kind = kind;
  event.set_name(name);
  event.begin_ns = begin_us * 1000;
  event.end_ns = end_us * 1000;
  return event;
}

// Two buckets: the second one half hidden behind backward.
TraceRecorder::Recorded one_step() {
  auto message = event_of(Kind::message, "BucketReady", 500, 510);
  message.from = "compute";
  return {{{"reducer",
            {event_of(Kind::span, "BucketReady", 510, 1100), message,
             event_of(Kind::collective, "all_reduce", 600, 700), event_of(Kind::collective, "all_reduce", 800, 1000)}},
           {"compute",
            {event_of(Kind::step, "ProfilerStep#7", 0, 1400), event_of(Kind::phase, "forward", 10, 400),
             event_of(Kind::phase, "backward", 400, 900), event_of(Kind::wait, "gather of a unit", 450, 550),
             event_of(Kind::phase, "wait for gradients", 900, 1100),
             event_of(Kind::collective, "all_gather", 1100, 1200), event_of(Kind::phase, "optimizer", 1200, 1300)}}},
          0};
}

std::string whole(const TracePart& part) { return "{\"traceEvents\":[" + part.events + "],\"otherData\":{}}"; }

std::string refusal_of(const std::vector<const char*>& flags) {
  std::vector<const char*> words{"program"};
  words.insert(words.end(), flags.begin(), flags.end());
  Config config;
  try {
    parse_config(config, static_cast<int>(words.size()), words.data());
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TraceRank rank_of(int rank, std::int64_t first, std::int64_t last, double hidden = 0.5) {
  TraceRank result{rank, "h", {}, {0, rank * 10'500}};
  result.totals.events = 100;
  result.totals.first_step = first;
  result.totals.last_step = last;
  result.totals.collectives_ns = 10'000'000;
  result.totals.hidden_ns = static_cast<std::int64_t>(hidden * 10'000'000);
  return result;
}

}  // namespace

TEST_CASE(
    "[T08] the setting profile is off, a table, or a table and a window of steps; anything else is refused with its "
    "place") {
  ProfileSetting setting;
  for (const std::string off : {"off", "false", "0"}) {
    CHECK(parse_profile(off, setting).empty());
    CHECK_FALSE(setting.table);
    CHECK_FALSE(setting.traces());
  }
  CHECK(parse_profile("true", setting).empty());
  CHECK(setting.table);
  CHECK_FALSE(setting.traces());
  CHECK(parse_profile("steps=10:13", setting).empty());
  CHECK(setting.table);
  CHECK(setting.operators);
  CHECK_FALSE(setting.traces(9));
  CHECK(setting.traces(10));
  CHECK(setting.traces(12));
  CHECK_FALSE(setting.traces(13));
  CHECK(parse_profile("steps=0:1,operators=off", setting).empty());
  CHECK_FALSE(setting.operators);
  for (const std::string bad : {"", "steps", "steps=", "steps=3", "steps=3:", "steps=:3", "steps=3:3", "steps=4:3",
                                "steps=-1:3", "steps=1:2:3", "steps=a:b", "steps=1:2,", "step=1:2", "operators=off",
                                "steps=1:2,operators=some", "steps=1:99999999999999999999", "steps= 1:2"}) {
    INFO(bad);
    CHECK_FALSE(parse_profile(bad, setting).empty());
  }
  CHECK(refusal_of({"--profile", "steps=5:5"}).starts_with("--profile"));
  CHECK(refusal_of({"--profile", "steps=5:5"}).find("'steps=5:5'") != std::string::npos);
  CHECK(refusal_of({"--profile", "steps=5:6", "--run_dir", ""}).find("run_dir") != std::string::npos);
  CHECK(refusal_of({"--profile"}).empty());
  CHECK(refusal_of({"--profile", "--epochs", "2"}).empty());
}

TEST_CASE("[T08] a thread without a recorder, or outside of its window, records nothing") {
  { const TraceSpan span("before"); }
  CHECK(active_track() == nullptr);
  const auto recorder = std::make_shared<TraceRecorder>();
  join_trace(recorder, "mine");
  { const TraceSpan span("too early"); }
  const auto early = steady_now_ns();
  recorder->start();
  trace_message("of before", "mine", early);
  {
    const TraceSpan outer("outer");
    const TraceSpan inner("inner");
  }
  std::thread([recorder] {
    { const TraceSpan span("on a thread that did not join"); }
    join_trace(recorder, "other");
    const TraceSpan span("of the other");
  }).join();
  trace_since(early, "since");
  recorder->stop();
  { const TraceSpan span("too late"); }
  join_trace(nullptr, {});
  const auto recorded = recorder->take();
  REQUIRE(recorded.tracks.size() == 2);
  const auto& [name, events] = recorded.tracks[0];
  CHECK(name == "mine");
  REQUIRE(events.size() == 3);
  CHECK(events[0].name.data() == std::string("inner"));
  CHECK(events[1].begin_ns <= events[0].begin_ns);
  CHECK(events[0].end_ns <= events[1].end_ns);
  CHECK(events[2].begin_ns == recorder->began_ns());  // and not before the window
  REQUIRE(recorded.tracks[1].second.size() == 1);
  CHECK(recorder->take().tracks[0].second.empty());
}

TEST_CASE("[T08] a rank keeps so many events and counts those that it drops") {
  const auto recorder = std::make_shared<TraceRecorder>(3);
  recorder->start();
  for (int i = 0; i < 5; ++i) recorder->track(i % 2 == 0 ? "a" : "b").add(event_of(Kind::user, "x", i, i + 1));
  auto recorded = recorder->take();
  CHECK(recorded.tracks[0].second.size() + recorded.tracks[1].second.size() == 3);
  CHECK(recorded.dropped == 2);
  recorder->track("a").add(event_of(Kind::user, "x", 9, 10));  // the next window has room again
  recorded = recorder->take();
  CHECK(recorded.tracks[0].second.size() == 1);
  CHECK(recorded.dropped == 0);
}

TEST_CASE("[T08] a collective is a span of the thread that was in it") {
  const auto recorder = std::make_shared<TraceRecorder>();
  join_trace(recorder, "reducer");
  recorder->start();
  CollectiveLedger ledger;
  ledger.set_step(4);
  CollectiveRecord record;
  record.kind = CollectiveKind::all_reduce;
  record.numel = 12;
  std::copy_n("bucket 3", 9, record.label.begin());
  const auto begun = ledger.begin(record);
  ledger.finish();
  join_trace(nullptr, {});
  const auto recorded = recorder->take();
  REQUIRE(recorded.tracks[0].second.size() == 1);
  const auto& event = recorded.tracks[0].second[0];
  CHECK(event.kind == Kind::collective);
  CHECK(event.name.data() == std::string("all_reduce"));
  CHECK(event.detail.data() == std::string("bucket 3"));
  CHECK(event.begin_ns == begun.started_ns);
  CHECK(event.end_ns >= event.begin_ns);
  CHECK(event.numel == 12);
  CHECK(event.step == 4);
}

TEST_CASE(
    "[T08] a rank's trace has a thread for each actor, arrows between them, and kernels for HTA whose overlap is "
    "ours") {
  const auto part = trace_part(one_step(), {3, "some host", 5'000'000'000});
  const ParsedTrace trace(whole(part));
  CHECK(trace.processes.at(3) == "rank 3 (some host)");
  CHECK(trace.count(3, "compute", "ProfilerStep#7") == 1);
  CHECK(trace.count(3, "compute", "backward") == 3);  // and as kernels before and after its wait
  CHECK(trace.of(3, "reducer").front().begin == 5'000'510'000);
  REQUIRE(trace.arrows.size() == 1);
  CHECK(trace.arrow_names.contains("BucketReady"));
  CHECK(part.totals.first_step == 7);
  CHECK(part.totals.last_step == 7);
  // In collectives 600-700 and 800-1000; computed 10-400, 400-450, 550-900, 1200-1300.
  CHECK(part.totals.collectives_ns == 300'000);
  CHECK(part.totals.hidden_ns == 200'000);
  CHECK(part.totals.overlap() == Approx(2.0 / 3));
  // What HTA reads: each kernel has a stream and the correlation of one launch. The all_gather that compute waits for
  // is none.
  std::map<std::int64_t, int> launches;
  for (const auto& [thread, spans] : trace.spans) {
    for (const auto& span : spans) {
      if (span.category == "cuda_runtime") ++launches[span.arguments["correlation"].get<std::int64_t>()];
    }
  }
  int kernels = 0, collectives = 0;
  for (const auto& [thread, spans] : trace.spans) {
    for (const auto& span : spans) {
      if (span.category != "kernel") continue;
      ++kernels;
      CHECK(launches[span.arguments["correlation"].get<std::int64_t>()] == 1);
      const bool collective = span.name.starts_with("ncclDevKernel_AllReduce");
      collectives += collective ? 1 : 0;
      CHECK(span.arguments["stream"] == (collective ? 1 : 0));
    }
  }
  CHECK(collectives == 2);
  CHECK(kernels == 2 + 4);
  CHECK(launches.size() == 6);
}

TEST_CASE("[T08] a device's own kernels take the place of those that a rank on the CPU is shown with") {
  auto recorded = one_step();
  auto kernel = event_of(Kind::kernel, "ncclDevKernel_AllReduce_Sum_f32", 0, 100),
       gemm = event_of(Kind::kernel, "gemm", 50, 200);
  kernel.stream = 20;
  gemm.stream = 7;
  recorded.tracks.push_back({"device", {kernel, gemm}});
  const auto part = trace_part(recorded, {0, "h", 0});
  const ParsedTrace trace(whole(part));
  CHECK(part.totals.collectives_ns == 100'000);
  CHECK(part.totals.hidden_ns == 50'000);
  CHECK(trace.count(0, "stream 20", "nccl") == 1);
  CHECK(trace.count(0, "compute", "backward") == 1);
}

namespace {

KinetoActivity activity_of(KinetoActivity::Kind kind, const std::string& name, std::int64_t begin_us,
                           std::int64_t end_us, std::int64_t correlation, std::int64_t resource) {
  KinetoActivity activity;
  activity.kind = kind;
  activity.name = name;
  activity.begin_ns = begin_us * 1000;
  activity.end_ns = end_us * 1000;
  activity.correlation = correlation;
  activity.resource = resource;
  return activity;
}

}  // namespace

TEST_CASE(
    "[T08] [L03] a device's kernels stand on a track for each stream, with arrows from their launches, and NCCL's from "
    "the reducer") {
  using Activity = KinetoActivity::Kind;
  const auto recorder = std::make_shared<TraceRecorder>();
  join_trace(recorder, "compute");
  std::atomic<std::int64_t> reducers_number{0};
  std::thread reducer([&] {
    join_trace(recorder, "reducer");
    reducers_number = ::gettid();
    recorder->track("reducer").add(event_of(Kind::span, "BucketReady", 100, 400));
    recorder->track("reducer").add(event_of(Kind::collective, "all_reduce", 150, 350));
    join_trace(nullptr, {});
  });
  reducer.join();
  // At the same time, of another operation: no kernel of it is the reducer's.
  recorder->track("gathers").add(event_of(Kind::collective, "all_gather", 160, 340));
  auto of_operator = activity_of(Activity::launch, "cudaLaunchKernel", 20, 25, 1, 4711);
  of_operator.thread = 1;
  auto matmul = activity_of(Activity::operation, "aten::mm", 10, 30, 77, 4711);
  matmul.thread = 1;
  add_activities(
      {matmul, of_operator, activity_of(Activity::device, "gemm", 40, 300, 1, 7),
       activity_of(Activity::launch, "cudaLaunchKernel", 120, 125, 2, reducers_number),
       activity_of(Activity::device, "pack", 310, 320, 2, 13),
       activity_of(Activity::launch, "cuLaunchKernelEx", 200, 210, 3, 0x7f00'1234),  // NCCL's own thread
       activity_of(Activity::device, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 250, 360, 3, 20),
       activity_of(Activity::launch, "cudaMemcpyAsync", 380, 390, 4, reducers_number),
       activity_of(Activity::device, "Memcpy DtoH (Device -> Pinned)", 395, 400, 4, 7)},
      *recorder);
  join_trace(nullptr, {});
  const auto part = trace_part(recorder->take(), {0, "h", 0});
  const ParsedTrace trace(whole(part));
  CHECK(trace.count(0, "stream 7", "gemm") == 1);
  CHECK(trace.count(0, "stream 13", "pack") == 1);
  CHECK(trace.count(0, "stream 20, NCCL", "ncclDevKernel_AllReduce") == 1);
  CHECK(trace.count(0, "operators", "cudaLaunchKernel") == 1);
  CHECK(trace.count(0, "reducer", "cudaLaunchKernel") == 1);
  CHECK(trace.count(0, "launches", "cuLaunchKernelEx") == 1);
  for (const auto& [thread, spans] : trace.spans) {
    for (const auto& span : spans) {
      if (!span.arguments.contains("stream")) continue;
      const bool nccl = span.name.starts_with("nccl");
      CHECK(span.category == (span.name.starts_with("Memcpy") ? "gpu_memcpy" : "kernel"));
      CHECK(span.arguments.contains("communication") == nccl);
      CHECK(span.arguments["correlation"].get<int>() >= 1);
    }
  }
  // By arrow: from which track to which.
  std::multiset<std::pair<std::string, std::string>> arrows;
  for (const auto& [id, ends] : trace.arrows)
    arrows.emplace(trace.names.at(ends[0].second), trace.names.at(ends[1].second));
  const std::multiset<std::pair<std::string, std::string>> expected{{"operators", "stream 7"},
                                                                    {"reducer", "stream 13"},
                                                                    {"launches", "stream 20, NCCL"},
                                                                    {"reducer", "stream 20, NCCL"},
                                                                    {"reducer", "stream 7"}};
  CHECK(arrows == expected);
  CHECK(trace.arrow_names == std::set<std::string>{"ac2g", "collective"});
  // In NCCL 250-360, of which the gemm runs to 300 and the pack 310-320; copies hide nothing.
  CHECK(part.totals.collectives_ns == 110'000);
  CHECK(part.totals.hidden_ns == 60'000);
}

TEST_CASE("[T08] spans that do not nest are shown in further threads of their track") {
  TraceRecorder::Recorded recorded{{{"data loader",
                                     {event_of(Kind::span, "load", 0, 100), event_of(Kind::span, "load", 50, 150),
                                      event_of(Kind::span, "load", 60, 90), event_of(Kind::span, "load", 100, 120)}}},
                                   0};
  const ParsedTrace trace(whole(trace_part(recorded, {0, "h", 0})));
  CHECK(trace.spans.size() == 2);
  CHECK(trace.count(0, "data loader 2", "load") == 1);
  CHECK(trace.count(0, "data loader", "load") == 4);
}

TEST_CASE("[T08] an arrow whose other end is in no span is left out") {
  auto recorded = one_step();
  for (const auto& [begin, end] : {std::pair<int, int>{1350, 2000}, {2000, 2010}, {20, 15}}) {
    auto message = event_of(Kind::message, "BucketReady", begin, end);
    message.from = "compute";
    recorded.tracks[0].second.push_back(message);
  }
  auto stranger = event_of(Kind::message, "BucketReady", 500, 520);
  stranger.from = "nobody";
  recorded.tracks[0].second.push_back(stranger);
  CHECK(ParsedTrace(whole(trace_part(recorded, {0, "h", 0}))).arrows.size() == 1);
}

TEST_CASE("[T08] names with quotes, control characters and broken UTF-8 leave the file whole") {
  TraceRecorder::Recorded recorded{{{"a \"track\"", {event_of(Kind::user, "say \"hi\"\n\t\\ \xff\xfe", 0, 1)}}}, 0};
  recorded.tracks[0].second.push_back(event_of(Kind::user, std::string(200, 'x'), 2, 3));
  const ParsedTrace trace(whole(trace_part(recorded, {0, "a \"host\"", 0})));
  CHECK(trace.of(0, "a \"track\"").size() == 2);
  CHECK(trace.of(0, "a \"track\"")[1].name == std::string(63, 'x'));
}

TEST_CASE("[T08] a clock's offset is that of the shortest way, and wrong by half of it at most") {
  const auto offset = offset_of({{1000, 9000, 50'500}, {20'000, 22'000, 70'900}, {30'000, 34'000, 82'500}}, false);
  CHECK(offset.offset_ns == 21'000 - 70'900);
  CHECK(offset.error_ns == 1001);
  CHECK(offset_of({{1000, 3000, 2400}}, false).offset_ns == -400);
  CHECK(offset_of({{1000, 3000, 2400}}, true).offset_ns == 0);  // one clock, as far as anybody can see
  CHECK(offset_of({{1000, 3000, 2400}}, true).error_ns == 0);
  CHECK(offset_of({{1000, 3000, 9400}}, true).offset_ns ==
        -7400);  // another one after all: a container with a clock of its own
}

TEST_CASE("[T08] ranks whose clocks began at other times find the offset to rank 0's, on each back end") {
  for (const auto& backend : test::all_backends()) {
    INFO(backend.name);
    constexpr std::int64_t kSkew = 123'456'789'000;
    std::vector<ClockOffset> found[3];
    test::run_ranks({backend, 3}, [&](Communicator& communicator) {
      const auto rank = communicator.rank();
      found[rank] = measure_clocks(
          communicator, [](int) { return false; }, [rank] { return steady_now_ns() - rank * kSkew; });
    });
    for (const auto& offsets : found) {
      REQUIRE(offsets.size() == 3);
      for (int rank = 0; rank < 3; ++rank) {
        CHECK(offsets[static_cast<std::size_t>(rank)].offset_ns == found[0][static_cast<std::size_t>(rank)].offset_ns);
        CHECK(std::abs(offsets[static_cast<std::size_t>(rank)].offset_ns - rank * kSkew) <=
              offsets[static_cast<std::size_t>(rank)].error_ns);
      }
    }
  }
}

TEST_CASE("[T08] a trace's files: one of all ranks, one of each, and nothing of an earlier trace") {
  testing::ScratchDirectory folder;
  std::filesystem::create_directories(folder / "trace");
  std::ofstream(folder / "trace/rank-7.json") << "old";
  std::ofstream(folder / "trace.json") << "old";
  ProfileSetting window;
  REQUIRE(parse_profile("steps=7:8", window).empty());
  {
    TraceFile file(folder.path(), "job", window, 2);
    CHECK_FALSE(std::filesystem::exists(folder / "trace.json"));
    for (const int rank : {0, 1}) {
      const auto part = trace_part(one_step(), {rank, "h", 0});
      file.add({rank, "h", part.totals, {rank * 1000, rank * 500}}, part.events);
    }
    file.finish();
    CHECK(file.problem().empty());
  }
  const ParsedTrace all(testing::read_text(folder / "trace.json"));
  CHECK(all.processes.size() == 2);
  CHECK(all.arrows.size() == 2);
  CHECK(all.other["job_id"] == "job");
  CHECK(all.other["overlap"].get<double>() == Approx(2.0 / 3));
  CHECK(all.other["ranks"][1]["clock_offset_us"] == 1.0);
  CHECK(all.other["ranks"][1]["clock_error_us"] == 0.5);
  for (const int rank : {0, 1}) {
    const auto text = testing::read_text(folder / ("trace/rank-" + std::to_string(rank) + ".json"));
    const ParsedTrace one(text);
    CHECK(one.processes.size() == 1);
    CHECK(text.find("\"rank\": " + std::to_string(rank)) != std::string::npos);  // with a blank, as HTA looks for it
    CHECK(nlohmann::json::parse(text)["distributedInfo"] ==
          nlohmann::json{{"backend", "nccl"}, {"rank", rank}, {"world_size", 2}});
  }
  CHECK_FALSE(std::filesystem::exists(folder / "trace/rank-7.json"));
  CHECK_FALSE(std::filesystem::exists(folder / "trace.json.partial"));
}

TEST_CASE("[T08] a trace that does not get onto the disk leaves no part of itself, and says why") {
  testing::ScratchDirectory folder;
  ProfileSetting window;
  REQUIRE(parse_profile("steps=7:8", window).empty());
  TraceFile file(folder.path(), "job", window, 1);
  const auto part = trace_part(one_step(), {0, "h", 0});
  file.add({0, "h", part.totals, {}}, part.events);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{1 << 19, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &full);
  file.add({1, "h", part.totals, {}}, std::string(1 << 20, ' '));
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  file.finish();
  CHECK(file.problem().find("File too large") != std::string::npos);
  CHECK(file.problem().find("trace.json") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder / "trace.json"));
  CHECK_FALSE(std::filesystem::exists(std::filesystem::symlink_status(folder / "trace.json.partial")));
}

TEST_CASE("[T08] a rank's own file that does not get onto the disk leaves no part of itself, and says why") {
  testing::ScratchDirectory folder;
  std::filesystem::create_directories(folder / "trace/rank-1.json/taken");
  const auto part = trace_part(one_step(), {0, "h", 0});
  CHECK_THROWS_WITH(write_trace_of_rank(folder.path(), {1, "h", part.totals, {}}, 2, part.events),
                    Catch::Contains("rank-1.json") && Catch::Contains("Is a directory"));
  for (const auto& entry : std::filesystem::directory_iterator(folder / "trace"))
    CHECK(entry.path().filename() == "rank-1.json");
  // And it ends the trace of all ranks.
  ProfileSetting window;
  REQUIRE(parse_profile("steps=7:8", window).empty());
  testing::ScratchDirectory other;
  TraceFile file(other.path(), "job", window, 1);
  std::filesystem::create_directories(other / "trace/rank-0.json/taken");
  file.add({0, "h", part.totals, {}}, part.events);
  file.finish();
  CHECK(file.problem() == "renaming to " + (other / "trace/rank-0.json") + ": Is a directory");
  CHECK_FALSE(std::filesystem::exists(other / "trace.json"));
  CHECK_FALSE(std::filesystem::exists(other / "trace.json.partial"));
}

TEST_CASE("[T08] intervals without holes are what is left of each instant, and a million of them are no matter") {
  const auto left = [](const std::vector<TraceInterval>& intervals, const std::vector<TraceInterval>& holes) {
    const auto in = [](const std::vector<TraceInterval>& all, std::int64_t t) {
      return std::any_of(all.begin(), all.end(), [t](const auto& i) { return i.first <= t && t < i.second; });
    };
    std::int64_t instants = 0;
    for (std::int64_t t = 0; t < 80; ++t) instants += in(intervals, t) && !in(holes, t) ? 1 : 0;
    return instants;
  };
  std::uint32_t state = 7;
  const auto draw = [&](std::uint32_t below) {
    return static_cast<std::int64_t>((state = state * 1664525 + 1013904223) >> 16) % below;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<TraceInterval> sides[2];
    for (auto& side : sides) {
      for (auto n = draw(8); n > 0; --n) {
        const auto begin = draw(60);
        side.emplace_back(begin, begin + draw(12));
      }
      side = merge_intervals(side);
    }
    const auto result = subtract_intervals(sides[0], sides[1]);
    INFO(round);
    REQUIRE(length_of(result) == left(sides[0], sides[1]));
    REQUIRE(length_of(merge_intervals(result)) == length_of(result));
  }
  std::vector<TraceInterval> many, holes;
  for (std::int64_t i = 0; i < 1'000'000; ++i) {
    many.emplace_back(10 * i, 10 * i + 8);
    holes.emplace_back(10 * i + 2, 10 * i + 4);
  }
  CHECK(subtract_intervals(many, holes).size() == 2'000'000);  // for hours, where each looks at all holes
  CHECK(subtract_intervals({{0, 10'000'000}}, holes).size() == 1'000'001);
}

TEST_CASE(
    "[T08] what is said of a trace names its steps, its overlap, its clocks, who came late and what was dropped") {
  ProfileSetting window;
  REQUIRE(parse_profile("steps=10:13", window).empty());
  CHECK(describe_trace("r/trace.json", window, {rank_of(0, 10, 12), rank_of(1, 10, 12, 1)}, 2) ==
        "trace: r/trace.json: 2 ranks, steps 10 to 12, 200 events; overlap 75.0%: 3.333 ms a step in collectives, "
        "2.500 hidden; clocks fit "
        "within 11 us");
  auto late = rank_of(1, 12, 12), empty = rank_of(2, -1, -1);
  late.totals.dropped = 5;
  const auto text = describe_trace("r/trace.json", window, {rank_of(0, 10, 12), late, empty}, 4);
  CHECK(text.find("rank 1: from step 12 on, the steps before are lost") != std::string::npos);
  CHECK(text.find("rank 2: nothing, since it joined later") != std::string::npos);
  CHECK(text.find("1 of 4 ranks were lost") != std::string::npos);
  CHECK(text.find("rank 1 had more than 200000 events: the last 5 are missing") != std::string::npos);
  CHECK(describe_trace("r/trace.json", window, {empty}, 1) == "trace: r/trace.json: no step from 10 to 12 was made");
}
