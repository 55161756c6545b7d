// all_reduce between processes of this machine, rank r on the r-th core:
//
//   echo "bytes 65536 200 shm" | build/release/bench/bench_all_reduce --ranks 2
//
// bench/README.md has the lines; the last word is what reduces: `shm` on memory from allocate(), `heap` the same on
// other memory, `gloo` our communicator over TCP, `libgloo` that library's own all-reduce, `alone` each rank for itself
// (below), `line` 4 B without all that a communicator does besides (lines.hpp). Every round writes the whole input
// anew, and that time is told, too: a reduction that leaves memory shared between cores makes the *next* write slow,
// and a benchmark that does not write would call that fast.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "bench/lines.hpp"
#include "bench/processes.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/kernels/reduce_kernels.hpp"
#include "tests/support/file_rendezvous.hpp"

using namespace troupe;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{400} << 20;

struct Samples {
  std::vector<double> reduce;  // microseconds
  std::vector<double> total;   // write and reduce
};

// Not at::fill_: its dispatch costs more than the smallest reductions.
void write(float* data, std::int64_t numel, float value) {
  for (std::int64_t i = 0; i < numel; ++i) data[i] = value;
}

template <class Barrier, class Reduce>
Samples measure(float* data, std::int64_t numel, int rounds, int terms, Barrier barrier, Reduce reduce) {
  Samples samples;
  for (int round = -3; round < rounds; ++round) {
    barrier();
    const auto begin = Clock::now();
    write(data, numel, static_cast<float>(round));
    const auto written = Clock::now();
    reduce();
    const auto end = Clock::now();
    if (data[numel - 1] != static_cast<float>(terms * round)) {
      std::fprintf(stderr, "wrong sum: %f in round %d\n", data[numel - 1], round);
      std::exit(70);
    }
    if (round < 0) continue;
    samples.reduce.push_back(std::chrono::duration<double, std::micro>(end - written).count());
    samples.total.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  return samples;
}

// What the shared memory costs: a rank that adds two halves which it alone wrote and reads, in memory of its own, at
// the same time as the others. No all-reduce, but as many bytes read and written as one.
Samples measure_alone(float* data, std::int64_t numel, int rounds, const std::function<void()>& barrier) {
  const void* inputs[] = {data, data + numel / 2};
  void* outputs[] = {data, data + numel / 2};
  ReduceTask task;
  task.inputs = inputs, task.input_count = 2, task.outputs = outputs, task.output_count = 2, task.numel = numel / 2;
  return measure(data, numel, rounds, 2, barrier, [&] { reduce(task); });
}

std::shared_ptr<gloo::Context> connect_libgloo(const std::string& folder, int rank, int ranks) {
  gloo::rendezvous::FileStore store(folder);
  auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->connectFullMesh(store, device);
  return context;
}

void print(const char* name, const std::vector<double>& numbers) {
  std::printf("%s", name);
  for (const double number : numbers) std::printf(" %.2f", number);
  std::printf("\n");
}

class Bench {
 public:
  Bench(int rank, int ranks, const std::string& folder) : ranks_(ranks), lines_(folder + "/lines", rank, ranks) {
    CommunicatorOptions options;
    options.rank = rank;
    options.world_size = ranks;
    options.rendezvous = std::make_shared<test::FileRendezvous>(folder);
    options.timeout = std::chrono::minutes(10);  // the programs take turns
    options.name = "shm";
    options.backend = "shm";
    shm_ = make_communicator(options);
    options.name = "gloo";
    options.backend = "gloo";
    gloo_ = make_communicator(options);
    library_ = connect_libgloo(folder + "/store", rank, ranks);
  }

  /// The next line, which rank 0 has read; waits without a core.
  std::string next(const std::string& line) { return gloo_->broadcast_bytes(line, 0, "line"); }

  Samples run(std::int64_t bytes, int rounds, const std::string& kind) {
    const auto numel = bytes / 4;
    if (kind == "shm" && (!window_.defined() || window_.numel() < numel)) window_ = shm_->allocate(numel, at::kFloat);
    if (kind != "shm" && (!heap_.defined() || heap_.numel() < numel)) heap_ = at::zeros({numel}, at::kFloat);
    const auto tensor = (kind == "shm" ? window_ : heap_).narrow(0, 0, numel);
    auto* data = tensor.data_ptr<float>();
    const auto meet = [&] { shm_->barrier(); };
    if (kind == "alone") return measure_alone(data, numel, rounds, meet);
    if (kind == "line") return measure(data, numel, rounds, ranks_, meet, [&] { *data = lines_.sum(*data); });
    if (kind == "libgloo") {
      return measure(data, numel, rounds, ranks_, meet, [&] {
        gloo::AllreduceOptions call(library_);
        call.setOutput(data, static_cast<std::size_t>(numel));
        call.setReduceFunction(
            static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&::gloo::sum<float>));
        gloo::allreduce(call);
      });
    }
    const auto& communicator = kind == "gloo" ? gloo_ : shm_;
    return measure(data, numel, rounds, ranks_, meet, [&] { communicator->all_reduce(tensor); });
  }

 private:
  int ranks_;
  Lines lines_;
  std::shared_ptr<Communicator> shm_, gloo_;
  std::shared_ptr<gloo::Context> library_;
  at::Tensor window_, heap_;
};

void run_rank(int rank, int ranks, const std::string& folder) {
  pin_to_core(rank);
  at::set_num_threads(1);
  Bench bench(rank, ranks, folder);
  if (rank == 0) std::printf("ready\n"), std::fflush(stdout);
  for (;;) {
    std::string line;
    if (rank == 0 && !std::getline(std::cin, line)) line = "quit";
    std::istringstream words(bench.next(line));
    std::string verb, kind;
    std::int64_t bytes = 0;
    int rounds = 0;
    words >> verb >> bytes >> rounds >> kind;
    if (verb == "quit") return;
    const std::set<std::string> kinds{"shm", "heap", "gloo", "libgloo", "alone", "line"};
    const std::int64_t least = kind == "alone" ? 8 : 4, most = kind == "line" ? 4 : kMostBytes;
    if (verb != "bytes" || bytes < least || bytes > most || rounds < 1 || !kinds.contains(kind)) {
      if (rank == 0)
        std::fprintf(stderr,
                     "bench_all_reduce: bytes N ROUNDS shm|heap|gloo|libgloo|alone|line, N from 4 (alone: 8) to 400 "
                     "MiB (line: 4)\n");
      std::exit(2);
    }
    const auto samples = bench.run(bytes, rounds, kind);
    if (rank != 0) continue;
    print("reduce_us", samples.reduce), print("write_and_reduce_us", samples.total);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4) {
    run_rank(std::atoi(argv[1]), std::atoi(argv[2]), argv[3]);
    return 0;
  }
  const int count = argc == 3 && std::string(argv[1]) == "--ranks" ? std::atoi(argv[2]) : 0;
  if (count < 1)
    return std::fprintf(stderr, "usage: bench_all_reduce --ranks N, then lines as in bench/README.md\n"), 2;
  char pattern[] = "/tmp/troupe-bench-XXXXXX";
  const std::string folder = ::mkdtemp(pattern);
  std::filesystem::create_directory(folder + "/store");
  std::vector<pid_t> ranks;
  for (int r = 0; r < count; ++r) {
    std::string number = std::to_string(r), all = std::to_string(count), where = folder;
    char* arguments[] = {argv[0], number.data(), all.data(), where.data(), nullptr};
    ranks.push_back(start_rank(r, arguments));
    if (ranks.back() == 0) return 71;
  }
  const int worst = wait_for(ranks);
  std::filesystem::remove_all(folder);
  return worst;
}
