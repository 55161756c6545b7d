// The conformance of the real NCCL: on one device a group of one, on several a group of as many threads, each with its
// own.
#include <c10/util/Exception.h>
#include <torch/torch.h>

#include <thread>

#include "tensor_io/communicator/nccl/nccl_communicator.hpp"
#include "tensor_io/cuda/nccl_library.hpp"
#include "tests/catch.hpp"
#include "tests/gpu/gpu.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

const std::vector<at::ScalarType> kGpuTypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                               at::kInt,   at::kLong,   at::kByte, at::kBool};

// Small whole numbers: exact in every type, whatever the order.
at::Tensor values(int rank, std::int64_t numel, at::ScalarType dtype) {
  const auto mixed = (torch::arange(numel, at::kLong) * 3 + rank * 5) % 11;
  return dtype == at::kBool ? (mixed % 3 == 0) : mixed.to(dtype);
}

void say(bool holds, const std::string& claim) {
  if (!holds) throw std::runtime_error("not true: " + claim);
}

// As many ranks as devices, at most eight. Throws the first failure.
void on_devices(int at_least, const std::function<void(Communicator&, int world_size)>& body) {
  need_devices(at_least);
  const int world_size = std::min(8, accelerator()->device_count());
  const auto rendezvous = std::make_shared<LocalRendezvous>();
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int r = 0; r < world_size; ++r) {
    threads.emplace_back([&, r] {
      try {
        CommunicatorOptions options;
        options.rank = r;
        options.world_size = world_size;
        options.backend = "nccl";
        options.device = {at::kCUDA, static_cast<c10::DeviceIndex>(r)};
        options.rendezvous = rendezvous;
        options.timeout = std::chrono::seconds(60);
        // Not make_communicator: a group of one is to be NCCL's too.
        const auto communicator = make_nccl_communicator(options);
        body(*communicator, world_size);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) CHECK(error == "");
}

}  // namespace

TEST_CASE("[L03] gpu: nccl reduces, gathers and scatters every type exactly", "[gpu][nccl]") {
  on_devices(1, [](Communicator& communicator, int world) {
    const int rank = communicator.rank();
    const auto device = communicator.device();
    const auto windows = communicator.allocate(1 << 22, at::kByte);
    for (const auto dtype : kGpuTypes) {
      for (const std::int64_t numel : {0, 1, 63, 20'011}) {
        auto sum = torch::zeros({numel}, at::kLong);
        for (int r = 0; r < world; ++r)
          sum = dtype == at::kBool ? (sum + values(r, numel, dtype).to(at::kLong)).clamp_max(1)
                                   : sum + values(r, numel, dtype).to(at::kLong);
        const auto expected = sum.to(dtype);
        for (const bool in_window : {false, true}) {
          auto tensor = values(rank, numel, dtype).to(device);
          if (in_window) {
            const auto place = windows.narrow(0, 0, static_cast<std::int64_t>(tensor.nbytes())).view(dtype);
            tensor = place.copy_(tensor);
          }
          communicator.all_reduce(tensor);
          say(torch::equal(tensor.cpu(), expected), std::string("all_reduce of ") + c10::toString(dtype));
        }
        const auto part = torch::empty({numel}, at::TensorOptions().dtype(dtype).device(device));
        std::vector<at::Tensor> slices;
        for (int r = 0; r < world; ++r) slices.push_back(values(rank, numel, dtype));
        communicator.reduce_scatter(part, torch::cat(slices).to(device));
        say(torch::equal(part.cpu(), expected), std::string("reduce_scatter of ") + c10::toString(dtype));
        const auto all = torch::empty({world * numel}, part.options());
        communicator.all_gather(all, values(rank, numel, dtype).to(device));
        for (int r = 0; r < world; ++r)
          say(torch::equal(all.narrow(0, r * numel, numel).cpu(), values(r, numel, dtype)),
              std::string("all_gather of ") + c10::toString(dtype));
        auto mine = values(rank, numel, dtype).to(device);
        communicator.broadcast(mine, world - 1);
        say(torch::equal(mine.cpu(), values(world - 1, numel, dtype)),
            std::string("broadcast of ") + c10::toString(dtype));
        communicator.gather(rank == 0 ? all : at::Tensor(), values(rank, numel, dtype).to(device), 0);
        communicator.scatter(part, rank == 0 ? all : at::Tensor(), 0);
        say(torch::equal(part.cpu(), values(rank, numel, dtype)),
            std::string("gather and scatter of ") + c10::toString(dtype));
        const auto turned = torch::empty_like(all);
        communicator.all_to_all(turned, all.fill_(rank % 2));
        for (int r = 0; r < world; ++r)
          say((turned.narrow(0, r * numel, numel) == r % 2).all().item<bool>(),
              std::string("all_to_all of ") + c10::toString(dtype));
      }
    }
    auto host = torch::ones({3});  // the CPU's tensors have a communicator of their own
    communicator.all_reduce(host);
    say(host[2].item<float>() == static_cast<float>(world), "a tensor of the CPU");
    say(communicator.all_gather_bytes(std::to_string(rank)).back() == std::to_string(world - 1), "bytes");
  });
}

TEST_CASE("[L03] gpu: nccl sends between ranks, and cuts groups out", "[gpu][nccl]") {
  on_devices(2, [](Communicator& communicator, int world) {
    const int rank = communicator.rank(), next = (rank + 1) % world, before = (rank + world - 1) % world;
    const auto there = torch::full({1000}, rank, at::TensorOptions().dtype(at::kFloat).device(communicator.device()));
    const auto got = torch::empty_like(there);
    if (rank % 2 == 0) communicator.send(there, next), communicator.recv(got, before);
    if (rank % 2 == 1) communicator.recv(got, before), communicator.send(there, next);
    if (world % 2 == 0) say((got == before).all().item<bool>(), "send and recv");
    const auto group = communicator.split(rank % 2, -rank);
    const auto one = torch::ones({10}, there.options());
    group->all_reduce(one);
    say(one[9].item<float>() == static_cast<float>(group->world_size()), "sum in the group");
  });
}

TEST_CASE("[L03] gpu: a set-up whose peer never comes ends at its deadline, and the device goes on", "[gpu][nccl]") {
  need_devices(1);
  NcclLifeOptions options;
  options.api = nccl_library();
  options.name = "lonely";
  options.timeout = std::chrono::seconds(2);
  std::string id;
  REQUIRE((options.api->unique_id(&id) == NcclResult::success));
  {
    NcclLife life(options);
    try {
      life.connect(2, 0, id);
      FAIL("it returned");
    } catch (const Error& error) {
      CHECK((error.code() == ErrorCode::timeout));
    }
  }
  CHECK(torch::ones({10}, torch::kCUDA).sum().item<float>() == 10);
}

TEST_CASE("[L03] gpu: a collective that a rank never joins is aborted at its deadline, and the device goes on",
          "[gpu][nccl]") {
  need_devices(2);
  const auto rendezvous = std::make_shared<LocalRendezvous>();
  std::vector<std::thread> threads;
  std::vector<std::string> ends(2);
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CommunicatorOptions options;
      options.rank = r;
      options.world_size = 2;
      options.backend = "nccl";
      options.device = {at::kCUDA, static_cast<c10::DeviceIndex>(r)};
      options.rendezvous = rendezvous;
      options.timeout = std::chrono::seconds(5);
      try {
        const auto communicator = make_communicator(options);
        const auto tensor = torch::ones({1'000'000}, at::TensorOptions().device(options.device));
        communicator->all_reduce(tensor);
        communicator->wait_on_host();
        if (r == 0) communicator->all_reduce(tensor, ReduceOp::sum, "alone");
        communicator->wait_on_host();
        if (r == 1) std::this_thread::sleep_for(std::chrono::seconds(10));  // stays, and does not come
        ends[static_cast<std::size_t>(r)] = "ended";
      } catch (const Error& error) {
        ends[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_THAT(ends[0], Catch::Contains("alone") && Catch::Contains("not finished"));
  CHECK(torch::ones({10}, torch::kCUDA).sum().item<float>() == 10);
}

namespace {

void make_communicators(int count) {
  need_devices(1);
  for (int round = 0; round < count; ++round) {
    CommunicatorOptions options;
    options.backend = "nccl";
    options.device = {at::kCUDA, 0};
    options.name = "round" + std::to_string(round);
    const auto communicator = make_nccl_communicator(options);
    const auto tensor = communicator->allocate(1000, at::kFloat);
    communicator->all_reduce(tensor.fill_(1));
    communicator->wait_on_host();
    if (round % 2 == 0) communicator->abort({ErrorCode::aborted, 0, {}, -1, {}, "on purpose", {}});
    CHECK(tensor.sum().item<float>() == 1000);
  }
}

// LibTorch's allocator gets all of the device's memory, and keeps it when the tensors are gone.
void fill_cache() {
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(torch::kCUDA);
  std::vector<at::Tensor> held;
  for (const std::int64_t size : {1LL << 30, 1LL << 26, 1LL << 24}) {
    try {
      for (;;) held.push_back(torch::empty({size}, bytes));
    } catch (const c10::OutOfMemoryError&) {
    }
  }
}

}  // namespace

TEST_CASE("[L03] gpu: 20 communicators are made, used and aborted, and nothing is left", "[gpu][nccl]") {
  make_communicators(20);
}

TEST_CASE("[L03] gpu: 100 communicators are made, used and aborted, and nothing is left", "[gpu][more]") {
  make_communicators(100);
}

TEST_CASE("[L03] gpu: buckets find memory while LibTorch's cache holds all of it", "[gpu][faults]") {
  need_devices(1);
  CommunicatorOptions options;
  options.backend = "nccl";
  options.device = {at::kCUDA, 0};
  const auto communicator = make_nccl_communicator(options);
  fill_cache();
  const auto bucket = communicator->allocate(1 << 26, at::kFloat);
  communicator->all_reduce(bucket.fill_(1));
  communicator->wait_on_host();
  CHECK(bucket[0].item<float>() == 1);
}
