// all_reduce between two processes of this machine, each on a core of its own:
//
//   build/release/bench/bench_all_reduce
//
// prints a JSON line per back end and size, then the ratios to libgloo's own all-reduce. Every round writes the whole input anew, and
// that time is reported too: a reduction that leaves memory shared between cores makes the *next* write slow, and a benchmark that
// does not write would call that fast (performance.md, section 0). The back ends take turns, so that noise meets all of them.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>

#include "tensor_io/communicator.hpp"
#include "tensor_io/reduce_kernels.hpp"
#include "tests/support/file_rendezvous.hpp"

using namespace troupe;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kRanks = 2;
constexpr int kTurns = 5;

struct Samples {
  std::vector<double> reduce;  // microseconds
  std::vector<double> total;   // write and reduce
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

// Not at::fill_: its dispatch costs more than the smallest reductions.
void write(float* data, std::int64_t numel, float value) {
  for (std::int64_t i = 0; i < numel; ++i) data[i] = value;
}

template <class Barrier, class Reduce>
void measure(Samples& samples, float* data, std::int64_t numel, int rounds, Barrier barrier, Reduce reduce) {
  for (int round = -3; round < rounds; ++round) {
    barrier();
    const auto begin = Clock::now();
    write(data, numel, static_cast<float>(round));
    const auto written = Clock::now();
    reduce();
    const auto end = Clock::now();
    if (data[numel - 1] != static_cast<float>(kRanks * round)) {
      std::fprintf(stderr, "wrong sum: %f in round %d\n", data[numel - 1], round);
      std::exit(70);
    }
    if (round < 0) continue;
    samples.reduce.push_back(std::chrono::duration<double, std::micro>(end - written).count());
    samples.total.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
}

// What the shared memory costs: a rank that adds two halves which it alone wrote and reads, in memory of its own, at the same time as the
// others. No all-reduce, but as many bytes read and written as one.
void measure_alone(Samples& samples, float* data, std::int64_t numel, int rounds, const std::function<void()>& barrier) {
  const void* inputs[] = {data, data + numel / 2};
  void* outputs[] = {data, data + numel / 2};
  ReduceTask task;
  task.inputs = inputs, task.input_count = 2, task.outputs = outputs, task.output_count = 2, task.numel = numel / 2;
  measure(samples, data, numel, rounds, barrier, [&] { reduce(task); });
}

std::shared_ptr<gloo::Context> connect_libgloo(const std::string& folder, int rank) {
  gloo::rendezvous::FileStore store(folder);
  auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, kRanks);
  context->connectFullMesh(store, device);
  return context;
}

void run_rank(int rank, const std::string& folder) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(rank % static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
  at::set_num_threads(1);

  CommunicatorOptions options;
  options.rank = rank;
  options.world_size = kRanks;
  options.rendezvous = std::make_shared<test::FileRendezvous>(folder);
  options.name = "shm";
  options.backend = "shm";
  const auto shm = make_communicator(options);
  options.name = "gloo";
  options.backend = "gloo";
  const auto gloo = make_communicator(options);
  const auto library = connect_libgloo(folder + "/store", rank);

  const std::vector<std::int64_t> sizes = {4, 4096, 65'536, 1 << 20, 25 << 20};
  const auto window = shm->allocate(sizes.back() / 4, at::kFloat);
  const auto heap = at::zeros({sizes.back() / 4}, at::kFloat);
  for (const auto bytes : sizes) {
    const auto numel = bytes / 4;
    const auto in_window = window.narrow(0, 0, numel);
    const auto on_heap = heap.narrow(0, 0, numel);
    auto* window_data = window.data_ptr<float>();
    auto* heap_data = heap.data_ptr<float>();
    std::map<std::string, Samples> samples;
    const int rounds = bytes <= 65'536 ? 200 : bytes <= 1 << 20 ? 60 : 12;
    const auto meet = [&] { shm->barrier(); };
    for (int turn = 0; turn < kTurns; ++turn) {
      measure(samples["shm"], window_data, numel, rounds, meet, [&] { shm->all_reduce(in_window); });
      measure(samples["shm, tensor not from allocate()"], heap_data, numel, rounds, meet, [&] { shm->all_reduce(on_heap); });
      if (numel > 1) measure_alone(samples["none: the same loop on memory of one rank"], heap_data, numel, rounds, meet);
      measure(samples["gloo"], heap_data, numel, rounds, meet, [&] { gloo->all_reduce(on_heap); });
      measure(samples["libgloo"], heap_data, numel, rounds, meet, [&] {
        gloo::AllreduceOptions call(library);
        call.setOutput(heap_data, static_cast<std::size_t>(numel));
        call.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&::gloo::sum<float>));
        gloo::allreduce(call);
      });
    }
    if (rank != 0) continue;
    const double library_reduce = quantile(samples["libgloo"].reduce, 0.5);
    for (const auto& [name, values] : samples) {
      const double reduce = quantile(values.reduce, 0.5);
      std::printf(
          "{\"benchmark\": \"all_reduce\", \"backend\": \"%s\", \"ranks\": %d, \"bytes\": %lld, \"reduce_us\": {\"p10\": %.2f, \"p50\": "
          "%.2f, \"p90\": %.2f}, "
          "\"write_and_reduce_us\": {\"p10\": %.2f, \"p50\": %.2f, \"p90\": %.2f}, \"times_faster_than_libgloo\": %.1f, \"kernels\": "
          "\"%s\"}\n",
          name.c_str(), kRanks, static_cast<long long>(bytes), quantile(values.reduce, 0.1), reduce, quantile(values.reduce, 0.9),
          quantile(values.total, 0.1), quantile(values.total, 0.5), quantile(values.total, 0.9), library_reduce / reduce,
          reduce_kernel_name());
    }
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    run_rank(std::atoi(argv[1]), argv[2]);
    return 0;
  }
  char pattern[] = "/tmp/troupe-bench-XXXXXX";
  const std::string folder = ::mkdtemp(pattern);
  std::filesystem::create_directory(folder + "/store");
  std::vector<pid_t> ranks;
  for (int r = 0; r < kRanks; ++r) {
    std::string program = "/proc/self/exe";
    std::string number = std::to_string(r);
    std::string where = folder;
    char* arguments[] = {program.data(), number.data(), where.data(), nullptr};
    pid_t pid = 0;
    if (posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environ) != 0) return 71;
    ranks.push_back(pid);
  }
  int worst = 0;
  for (const auto pid : ranks) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 70);
  }
  std::filesystem::remove_all(folder);
  return worst;
}
