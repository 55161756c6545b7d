// Which stream waits for what, on a device that only writes it down.
#include <c10/util/Exception.h>
#include <sys/prctl.h>

#include <future>
#include <thread>

#include "tensor_io/communicator/nccl/nccl_communicator.hpp"
#include "tensor_io/communicator/nccl/nccl_watchdog.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tests/catch.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/scripted_nccl.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

CollectiveRecord flying(std::int64_t numel) {
  CollectiveRecord record;
  record.kind = CollectiveKind::all_reduce;
  record.dtype = static_cast<std::int8_t>(at::kFloat);
  record.numel = numel;
  return record;
}

struct Watched {
  std::chrono::steady_clock::time_point time{};
  std::optional<ErrorReport> background;
  std::vector<ErrorReport> failures;
  NcclFlights flights{{FakeDevice::device(), std::chrono::milliseconds(5'000), [this] { return background; },
                       [this](const ErrorReport& report) { failures.push_back(report); }, [this] { return time; },
                       false}};
};

/// NCCL's abort goes on until the test lets it.
struct HeldAbort {
  std::promise<void> begun, goes_on;
  explicit HeldAbort(ScriptedNccl& api) {
    api.on_call = [this, going = goes_on.get_future().share()](const std::string& call) {
      if (call != "abort") return;
      begun.set_value();
      going.wait();
    };
  }
};

CommunicatorOptions fake_options(const std::shared_ptr<NcclApi>& api) {
  CommunicatorOptions options;
  options.name = "communicator";
  options.backend = "nccl";
  options.device = FakeDevice::device();
  options.nccl = api;
  options.timeout = std::chrono::milliseconds(60'000);
  return options;
}

}  // namespace

TEST_CASE("[L03] nccl: a collective waits for the caller's stream and the caller's stream for it, the host for nothing",
          "[nccl]") {
  FakeDevice::reset();
  const auto api = std::make_shared<ScriptedNccl>();
  NcclCommunicator communicator(fake_options(api), nullptr);
  const auto tensor = FakeDevice::tensor(4, at::kFloat);
  const auto waits = host_waits();
  FakeDevice::hold();  // nothing is over
  communicator.all_reduce(tensor, ReduceOp::sum, "bucket 0");
  communicator.all_reduce(tensor, ReduceOp::sum, "bucket 1");
  CHECK((host_waits() == waits));
  // s101: of high priority, the communicator's own.
  CHECK((FakeDevice::calls() ==
         std::vector<std::string>{"e1 marks s0", "s101 waits for e1", "e2 marks s101", "s0 waits for e2",  //
                                  "e1 marks s0", "s101 waits for e1", "e3 marks s101", "s0 waits for e3"}));
  const auto calls = api->calls();
  CHECK((std::count(calls.begin(), calls.end(), "all_reduce on s101") == 2));
  FakeDevice::release();
  communicator.wait_on_host("vote");
  CHECK((host_waits() == waits + 1));
  pause_between_looks(std::chrono::steady_clock::now());
  CHECK(prctl(PR_GET_TIMERSLACK) == 1'000);  // it wakes when it is to
}

TEST_CASE("[L03] nccl: a wait for the device ends with the communicator", "[nccl]") {
  FakeDevice::reset();
  const auto api = std::make_shared<ScriptedNccl>();
  NcclCommunicator communicator(fake_options(api), nullptr);
  FakeDevice::hold();
  communicator.all_reduce(FakeDevice::tensor(4, at::kFloat));
  communicator.abort({ErrorCode::peer_lost, 1, {}, -1, {}, "rank 1 is gone", {}});
  try {
    communicator.wait_on_host("vote");
    FAIL("it returned");
  } catch (const Error& error) {
    CHECK((error.code() == ErrorCode::aborted));
    CHECK(std::string(error.what()).find("rank 1 is gone") != std::string::npos);
  }
  FakeDevice::release();
}

TEST_CASE("[L03] nccl: an error that NCCL finds in the background breaks the communicator for the next call",
          "[nccl]") {
  FakeDevice::reset();
  const auto api = std::make_shared<ScriptedNccl>();
  NcclCommunicator communicator(fake_options(api), nullptr);
  FakeDevice::hold();
  communicator.all_reduce(FakeDevice::tensor(4, at::kFloat));
  api->set_background(NcclResult::remote_error);
  try {
    communicator.wait_on_host("vote");  // its own thread looks
    FAIL("it returned");
  } catch (const Error& error) {
    CHECK((error.code() == ErrorCode::peer_lost));
  }
  CHECK_THROWS_AS(communicator.all_reduce(FakeDevice::tensor(4, at::kFloat)), Error);
  FakeDevice::release();
}

TEST_CASE("[L03] nccl: tensors' memory lives until the device is done with it, and their graphs do not", "[nccl]") {
  FakeDevice::reset();
  Watched watched;
  FakeDevice::hold();
  auto tensor = FakeDevice::tensor(4, at::kFloat);
  const auto alive = tensor.storage().getWeakStorageImpl();
  const auto graph = c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr());
  watched.flights.add(flying(4), DeviceStream::from_pool(FakeDevice::device(), true), {tensor});
  tensor = at::Tensor();
  watched.flights.look();
  CHECK_FALSE(alive.expired());
  CHECK(graph.expired());  // it may hold the communicator, whose flights these are
  CHECK((watched.flights.count() == 1));
  FakeDevice::release();
  watched.flights.look();
  CHECK((watched.flights.count() == 0));
  CHECK_FALSE(alive.expired());  // to free NCCL's memory may take for ever: not on the thread that watches
  watched.flights.add(flying(4), DeviceStream::from_pool(FakeDevice::device(), true), {});
  CHECK(alive.expired());
  CHECK(watched.failures.empty());
}

TEST_CASE("[L03] nccl: a collective that the device does not end is named at its deadline, once", "[nccl]") {
  FakeDevice::reset();
  Watched watched;
  FakeDevice::hold();
  const auto stream = DeviceStream::from_pool(FakeDevice::device(), true);
  watched.flights.add(flying(7), stream, {});
  watched.time += std::chrono::milliseconds(3'000);
  watched.flights.add(flying(8), stream, {});
  watched.time += std::chrono::milliseconds(2'000);
  watched.flights.look();
  CHECK(watched.failures.empty());
  watched.time += std::chrono::milliseconds(1);
  watched.flights.look();
  watched.flights.look();
  REQUIRE((watched.failures.size() == 1));
  CHECK((watched.failures[0].code == ErrorCode::timeout));
  CHECK(watched.failures[0].operation.find("all_reduce of 7 Float") == 0);
  FakeDevice::release();
}

TEST_CASE("[L03] nccl: a device that has failed is not waited for", "[nccl]") {
  FakeDevice::reset();
  Watched watched;
  watched.flights.add(flying(7), DeviceStream::from_pool(FakeDevice::device(), true), {});
  FakeDevice::fail();
  watched.flights.look();
  REQUIRE((watched.failures.size() == 1));
  CHECK((watched.failures[0].code == ErrorCode::device_lost));
  CHECK(watched.failures[0].cause == "the device has failed: an illegal memory access was encountered");
  FakeDevice::reset();
}

TEST_CASE("[L03] nccl: memory from allocate is NCCL's, in a window as long as the communicator lives", "[nccl]") {
  FakeDevice::reset();
  const auto api = std::make_shared<ScriptedNccl>();
  const auto count = [&](const char* call) {
    const auto calls = api->calls();
    return std::count(calls.begin(), calls.end(), call);
  };
  auto options = fake_options(api);
  options.device = at::kCPU;  // memory of the test's own device has no kernels to zero it
  auto communicator = std::make_unique<NcclCommunicator>(options, nullptr);
  auto first = communicator->allocate(10, at::kFloat);
  auto second = communicator->allocate(3, at::kBFloat16);
  CHECK((count("memory") == 2));
  CHECK((count("add_window") == 2));
  first = at::Tensor();
  CHECK((count("remove_window") == 1));
  CHECK((count("free_memory") == 1));
  communicator.reset();
  second.fill_(1);
  CHECK((count("free_memory") == 1));
  second = at::Tensor();
  CHECK((count("free_memory") == 2));
  CHECK((count("remove_window") == 1));
}

TEST_CASE("[L03] tensors of another device than the communicator's are refused by name", "[nccl]") {
  CommunicatorOptions options;
  const auto communicator = make_communicator(options);
  try {
    communicator->all_reduce(FakeDevice::tensor(4, at::kFloat));
    FAIL("it returned");
  } catch (const Error& error) {
    CHECK((error.code() == ErrorCode::usage));
    CHECK(std::string(error.what()).find("moves tensors of the CPU") != std::string::npos);
  }
  options.world_size = 2;
  options.rendezvous = std::make_shared<LocalRendezvous>();
  options.backend = "nccl";
  CHECK_THROWS_AS(make_communicator(options), Error);  // for the CPU
  options.backend = "gloo";
  options.device = FakeDevice::device();
  CHECK_THROWS_AS(make_communicator(options), Error);
}

TEST_CASE("[L03] nccl: the memory of a launch that failed lives until the abort is over", "[nccl]") {
  FakeDevice::reset();
  const auto api = std::make_shared<ScriptedNccl>();
  HeldAbort abort(*api);
  NcclCommunicator communicator(fake_options(api), nullptr);
  auto tensor = FakeDevice::tensor(4, at::kFloat);
  const auto alive = tensor.storage().getWeakStorageImpl();
  api->answer("async_error", {NcclResult::in_progress, NcclResult::remote_error});
  CHECK_THROWS_AS(communicator.all_reduce(tensor), Error);
  tensor = at::Tensor();
  abort.begun.get_future().wait();
  CHECK_FALSE(alive.expired());
  abort.goes_on.set_value();
  for (int i = 0; i < 1000 && !alive.expired(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(alive.expired());
}

TEST_CASE("[L03] nccl: what a call that failed may still use is not given back before the abort is over", "[nccl]") {
  FakeDevice::reset();
  const auto api = std::make_shared<ScriptedNccl>();
  HeldAbort abort(*api);
  const auto freed = [&] {
    const auto calls = api->calls();
    return std::count(calls.begin(), calls.end(), "free_memory");
  };
  {
    NcclCommunicator communicator(fake_options(api), nullptr);
    api->answer("add_window", {NcclResult::in_progress});
    api->answer("async_error", {NcclResult::in_progress, NcclResult::remote_error});
    CHECK_THROWS_AS(communicator.allocate(4, at::kFloat), Error);
    abort.begun.get_future().wait();
    CHECK((freed() == 0));
    abort.goes_on.set_value();
  }
  for (int i = 0; i < 1000 && freed() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK((freed() == 1));
}
