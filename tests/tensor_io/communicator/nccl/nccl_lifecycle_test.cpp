// What we do with NCCL's answers, on an NCCL that is a script: no device, and nothing about NCCL itself.
#include "tensor_io/communicator/nccl/nccl_lifecycle.hpp"

#include <atomic>
#include <future>
#include <semaphore>
#include <thread>

#include "tensor_io/communicator/nccl/nccl_types.hpp"
#include "tests/catch.hpp"
#include "tests/support/scripted_nccl.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

using Calls = std::vector<std::string>;

// Time passes only where somebody waits: a tenth of a second each look.
struct LifeClock {
  std::shared_ptr<std::chrono::steady_clock::time_point> time =
      std::make_shared<std::chrono::steady_clock::time_point>();
  NcclClock clock() const {
    return {[time = time] { return *time; },
            [time = time](std::chrono::steady_clock::time_point) { *time += std::chrono::milliseconds(100); }};
  }
};

NcclLifeOptions life_of(const std::shared_ptr<ScriptedNccl>& api, const LifeClock& clock = {}) {
  NcclLifeOptions options;
  options.api = api;
  options.name = "communicator";
  options.timeout = std::chrono::milliseconds(2'000);
  options.clock = clock.clock();
  return options;
}

template <class Work>
ErrorReport report_of_failure(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.report();
  }
  return {ErrorCode::ok, -1, {}, -1, {}, {}, {}};
}

const NcclLife::Calls kAllReduce = [](NcclApi& api, NcclComm comm) {
  return api.all_reduce(nullptr, nullptr, 1, NcclType::f32, NcclOp::sum, comm, nullptr);
};

// NCCL's abort runs on a thread of its own.
void await_call(const ScriptedNccl& api, const std::string& call) {
  for (;;) {
    const auto calls = api.calls();
    if (std::find(calls.begin(), calls.end(), call) != calls.end()) return;
    std::this_thread::yield();
  }
}

}  // namespace

TEST_CASE("[L03] nccl: a set-up that goes on in the background is waited for, and its end is finalize and destroy",
          "[nccl]") {
  const auto api = std::make_shared<ScriptedNccl>();
  api->answer("init", {NcclResult::in_progress});
  api->answer("async_error", {NcclResult::in_progress, NcclResult::in_progress, NcclResult::success});
  {
    NcclLife life(life_of(api));
    CHECK_FALSE(life.ready());
    life.connect(2, 0, "id");
    CHECK(life.ready());
    CHECK((api->looks() == 3));
    life.launch("all_reduce", kAllReduce);
  }
  CHECK((api->calls() == Calls{"init", "group_start", "all_reduce on s0", "group_end", "finalize", "destroy"}));
}

TEST_CASE("[L03] nccl: a set-up that never ends ends at its deadline, by name, with an abort", "[nccl]") {
  const auto api = std::make_shared<ScriptedNccl>();
  api->answer("init", {NcclResult::in_progress});
  api->set_background(NcclResult::in_progress);
  const LifeClock clock;
  {
    NcclLife life(life_of(api, clock));
    const auto report = report_of_failure([&] { life.connect(2, 0, "id"); });
    CHECK((report.code == ErrorCode::timeout));
    CHECK((report.cause == "NCCL set-up of communicator 'communicator': not finished after 2000 ms"));
    CHECK_FALSE(report.remedy.empty());
    CHECK((clock.time->time_since_epoch() <= std::chrono::milliseconds(2'200)));  // of the clock that the waits move
    CHECK_FALSE(life.ready());
  }
  CHECK((api->calls() == Calls{"init", "abort"}));
}

TEST_CASE("[L03] nccl: after the first failure nothing is called but abort", "[nccl]") {
  const auto result = GENERATE(NcclResult::unhandled_cuda_error, NcclResult::system_error, NcclResult::internal_error,
                               NcclResult::invalid_argument, NcclResult::invalid_usage, NcclResult::remote_error);
  const bool in_background = GENERATE(false, true);
  const auto api = std::make_shared<ScriptedNccl>();
  {
    NcclLife life(life_of(api));
    life.connect(2, 0, "id");
    if (in_background) {
      api->answer("group_end", {NcclResult::in_progress});
      api->answer("async_error", {NcclResult::in_progress, result});
    } else {
      api->answer("group_end", {result});
    }
    api->set_last_error("what NCCL says");
    const auto report = report_of_failure([&] { life.launch("all_reduce of 1 f32", kAllReduce); });
    CHECK((report.code == nccl_failure(result, "", "").code));
    CHECK(report.cause.find("NCCL all_reduce of 1 f32: ") == 0);
    CHECK(report.cause.find(std::string(to_string(result)) + " (what NCCL says)") != std::string::npos);
    CHECK((report_of_failure([&] { life.launch("all_reduce", kAllReduce); }).code == ErrorCode::aborted));
  }
  CHECK((api->calls() == Calls{"init", "group_start", "all_reduce on s0", "group_end", "abort"}));
}

TEST_CASE("[L03] nccl: a group is closed also after a call that failed", "[nccl]") {
  const auto api = std::make_shared<ScriptedNccl>();
  NcclLife life(life_of(api));
  life.connect(2, 0, "id");
  api->answer("all_reduce on s0", {NcclResult::invalid_argument});
  CHECK((report_of_failure([&] { life.launch("all_reduce", kAllReduce); }).code == ErrorCode::internal));
  const auto calls = api->calls();
  CHECK(std::find(calls.begin(), calls.end(), "group_end") != calls.end());
}

TEST_CASE("[L03] nccl: an abort frees a thread that waits for NCCL", "[nccl]") {
  const auto api = std::make_shared<ScriptedNccl>();
  api->answer("init", {NcclResult::in_progress});
  api->set_background(NcclResult::in_progress);
  std::binary_semaphore looked{0};
  std::once_flag once;
  api->on_call = [&](const std::string& call) {
    if (call == "async_error") std::call_once(once, [&] { looked.release(); });
  };
  auto options = life_of(api);
  options.clock = {};  // the wait itself would end after 2 s, as a timeout
  options.timeout = std::chrono::hours(1);
  NcclLife life(std::move(options));
  auto failure = std::async(std::launch::async, [&] { return report_of_failure([&] { life.connect(2, 0, "id"); }); });
  looked.acquire();
  life.abort();
  CHECK((failure.get().code == ErrorCode::aborted));
}

TEST_CASE("[L03] nccl: of two communicators both are told to abort, though the first abort needs the second's",
          "[nccl]") {
  const auto first = std::make_shared<ScriptedNccl>();
  const auto second = std::make_shared<ScriptedNccl>();
  std::binary_semaphore second_aborts{0};
  first->on_call = [&](const std::string& call) {
    if (call == "abort") second_aborts.acquire();
  };
  second->on_call = [&](const std::string& call) {
    if (call == "abort") second_aborts.release();
  };
  {
    NcclLife one(life_of(first)), two(life_of(second));
    one.connect(2, 0, "id");
    two.connect(2, 0, "id");
    one.abort();
    two.abort();
  }
  await_call(*first, "abort");
  CHECK((second->calls() == Calls{"init", "abort"}));
}

TEST_CASE("[L03] nccl: an end that the others do not come to is an abort", "[nccl]") {
  const auto api = std::make_shared<ScriptedNccl>();
  {
    NcclLife life(life_of(api));
    life.connect(2, 0, "id");
    api->answer("finalize", {NcclResult::in_progress});
    api->set_background(NcclResult::in_progress);
  }
  CHECK((api->calls() == Calls{"init", "finalize", "abort"}));
}

TEST_CASE("[L03] nccl: a group that is cut out waits for the parent, then for itself", "[nccl]") {
  const auto api = std::make_shared<ScriptedNccl>();
  NcclLife life(life_of(api));
  life.connect(2, 0, "id");
  api->answer("split", {NcclResult::in_progress, NcclResult::in_progress});
  api->answer("async_error",
              {NcclResult::in_progress, NcclResult::success, NcclResult::in_progress, NcclResult::success});
  const auto child = life.split(0, 0, "part");
  REQUIRE(child);
  CHECK(child->ready());
  CHECK((api->looks() == 5));  // one is the set-up's
  CHECK_FALSE(life.split(-1, 0, "none"));
}

TEST_CASE("[L03] nccl: a call that returned success, and goes on, is waited for", "[nccl]") {
  const auto api = std::make_shared<ScriptedNccl>();
  NcclLife life(life_of(api));
  life.connect(2, 0, "id");
  void* window = nullptr;
  life.manage("window", [&](NcclApi& calls, NcclComm comm) { return calls.add_window(comm, &life, 1, &window); });
  CHECK(window != nullptr);
  CHECK_NOTHROW(life.launch("all_reduce", kAllReduce));
  const auto child = life.split(0, 0, "part");
  REQUIRE(child);
  CHECK_NOTHROW(child->launch("all_reduce", kAllReduce));
}

TEST_CASE("[L03] nccl: what fails in the background is found without a call", "[nccl]") {
  const auto api = std::make_shared<ScriptedNccl>();
  NcclLife life(life_of(api));
  CHECK_FALSE(life.background_failure());
  life.connect(2, 0, "id");
  CHECK_FALSE(life.background_failure());
  api->set_background(NcclResult::in_progress);
  CHECK_FALSE(life.background_failure());
  api->set_background(NcclResult::remote_error);
  REQUIRE(life.background_failure());
  CHECK((life.background_failure()->code == ErrorCode::peer_lost));
}

TEST_CASE("[L03] nccl: a peer's fault may be recovered, a CUDA error ends the process, and each says what to look at",
          "[nccl]") {
  CHECK(may_be_recovered(nccl_failure(NcclResult::remote_error, "all_reduce", "").code));
  CHECK(may_be_recovered(nccl_failure(NcclResult::system_error, "all_reduce", "").code));
  CHECK_FALSE(may_be_recovered(nccl_failure(NcclResult::unhandled_cuda_error, "all_reduce", "").code));
  CHECK_FALSE(may_be_recovered(nccl_failure(NcclResult::internal_error, "all_reduce", "").code));
  for (int result = 1; result <= 6; ++result)
    CHECK_FALSE(nccl_failure(static_cast<NcclResult>(result), "all_reduce", "").remedy.empty());
  const auto shared = nccl_failure(NcclResult::invalid_usage, "set-up",
                                   "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000");
  CHECK((shared.code == ErrorCode::usage));
  CHECK(shared.remedy.find("--share_device") != std::string::npos);
  CHECK((nccl_version_text(22809) == "2.28.9"));
}

TEST_CASE("[L03] nccl: every type and operation of a communicator has NCCL's, a bool's sum is or", "[nccl]") {
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte, at::kBool}) {
    CHECK_NOTHROW(nccl_type(dtype));
  }
  CHECK((nccl_type(at::kBFloat16) == NcclType::bf16));
  CHECK((nccl_type(at::kFloat8_e4m3fn) == NcclType::f8e4m3));
  CHECK((nccl_type(at::kBool) == NcclType::uint8));
  CHECK((nccl_op(ReduceOp::sum, at::kBool) == NcclOp::max));
  CHECK((nccl_op(ReduceOp::product, at::kBool) == NcclOp::min));
  CHECK((nccl_op(ReduceOp::sum, at::kByte) == NcclOp::sum));
  CHECK((report_of_failure([] { nccl_type(at::kShort); }).code == ErrorCode::usage));
}

TEST_CASE("[L03] nccl: a call of another thread waits for the one that is under way", "[nccl]") {
  const auto api = std::make_shared<ScriptedNccl>();
  auto options = life_of(api);
  options.timeout = std::chrono::hours(1);
  options.clock = {};
  NcclLife life(options);
  life.connect(1, 0, std::string(128, 'i'));
  std::atomic<bool> under_way{true}, met{false};
  api->on_call = [&](const std::string& call) {
    if (call == "remove_window" && under_way) met = true;
  };
  api->set_background(NcclResult::in_progress);
  api->answer("group_end", {NcclResult::in_progress});
  std::thread launching([&] { life.launch("all_reduce", kAllReduce); });
  await_call(*api, "group_end");
  std::thread dropping([&] {
    life.manage("end of a window", [](NcclApi& calls, NcclComm comm) { return calls.remove_window(comm, comm); });
  });
  for (const int looks = api->looks(); api->looks() < looks + 500;) std::this_thread::yield();
  under_way = false;
  api->set_background(NcclResult::success);
  launching.join();
  dropping.join();
  CHECK_FALSE(met);
  CHECK((api->calls().back() == "remove_window"));
}
