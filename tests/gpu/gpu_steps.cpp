// Our side of the rows beside PyTorch: optimizer steps of the jobs of bench/README.md on a device, driven by lines.
//
//   printf 'block 5\n' | build/cuda/tests/gpu/gpu_steps --job gpt_tiny --batch 2 [--strategy ddp|fsdp]
//                          [--precision fp64|fp32|bf16]
//                          [--device auto] [--ranks 1] [--share-device false] [--as-ranks 1] [--offload false]
//                          [--graphs false] [--vote auto] [--profile steps=8:12 --run-dir FOLDER]
//
// bf16 is autocast with ddp, and the dtype of forward and backward with fsdp. `--as-ranks N`: the batches of N ranks,
// joined.
//
//   block N   N steps      -> `host_waits W`, `losses L1 .. LN`, `step_ms T`: waits of the host for the device and time
//   of one step, the
//                             block's by N, the device's end included
//   stuck     a collective that one rank never joins is aborted -> `abort_s T`: until its end
//   lonely    NCCL's set-up, to which rank 1 never comes, ends at its deadline -> `set_up_s T`
//   launches N  all_reduces of 1,000 numbers, one after the other -> `launch_us T`: of one, on the host
//   assert    a kernel fails before a step
//   quit
#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "bench/processes.hpp"
#include "bench/step_job.hpp"
#include "tensor_io/communicator/nccl/nccl_lifecycle.hpp"
#include "tensor_io/device/accelerator.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "troupe/troupe.hpp"

using namespace step_job;

namespace {

struct Options {
  std::string job = "gpt_tiny", strategy = "ddp", precision = "fp32", device = "auto", vote, profile = "off", run_dir;
  int batch = 1, ranks = 1, as_ranks = 1;
  bool share_device = false, offload = false, graphs = false;
};

Options parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, std::string*> texts{
      {"--job", &options.job},        {"--strategy", &options.strategy}, {"--precision", &options.precision},
      {"--device", &options.device},  {"--vote", &options.vote},         {"--profile", &options.profile},
      {"--run-dir", &options.run_dir}};
  const std::map<std::string, int*> numbers{
      {"--batch", &options.batch}, {"--ranks", &options.ranks}, {"--as-ranks", &options.as_ranks}};
  const std::map<std::string, bool*> switches{
      {"--share-device", &options.share_device}, {"--offload", &options.offload}, {"--graphs", &options.graphs}};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(name + " has no value");
    if (texts.contains(name))
      *texts.at(name) = argv[i + 1];
    else if (numbers.contains(name))
      *numbers.at(name) = std::stoi(argv[i + 1]);
    else if (switches.contains(name))
      *switches.at(name) = std::string(argv[i + 1]) == "true";
    else
      throw std::invalid_argument("there is no " + name);
  }
  if (options.precision != "fp64" && options.precision != "fp32" && options.precision != "bf16")
    throw std::invalid_argument("--precision is fp64, fp32 or bf16");
  if (options.batch < 1 || options.ranks < 1 || options.as_ranks < 1)
    throw std::invalid_argument("--batch, --ranks and --as-ranks are at least 1");
  return options;
}

void print_exact(const char* name, const std::vector<double>& numbers) {
  std::printf("%s", name);
  for (const double number : numbers) std::printf(" %.17g", number);
  std::printf("\n");
}

void wait_for_device(at::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

Job job_of(const troupe::Rank& rank, const Options& options) {
  std::vector<Job> ranks;
  for (int r = 0; r < options.as_ranks; ++r) ranks.push_back(make_job(options.job, rank.rank() + r, options.batch, 8));
  auto job = joined(ranks);
  if (options.precision == "fp64") job.model->to(at::kDouble);
  for (auto* tensors : {&job.inputs, &job.targets}) {
    for (auto& tensor : *tensors) {
      const bool wide = options.precision == "fp64" && tensor.is_floating_point();
      tensor = tensor.to(rank.device(), wide ? at::kDouble : tensor.scalar_type());
    }
  }
  return job;
}

double run_step(troupe::Rank& rank, const Options& options, const Job& job, troupe::Optimizer& optimizer) {
  const auto batch = std::make_shared<troupe::Batch>();
  const auto next = static_cast<std::size_t>(rank.steps_done()) % kBatches;
  batch->input = job.inputs[next];
  batch->target = job.targets[next];
  rank.run_micro_batches({batch}, [&](const troupe::Batch& of) -> troupe::Loss {
    const troupe::AutocastGuard autocast(options.precision == "bf16" && options.strategy == "ddp", at::kBFloat16,
                                         rank.device().type());
    return job.criterion(*job.model, of.input, of.target);
  });
  return rank.step(optimizer).loss;
}

void run_block(troupe::Rank& rank, const Options& options, const Job& job, troupe::Optimizer& optimizer, int count) {
  std::vector<double> losses;
  const auto waits = troupe::host_waits();
  wait_for_device(rank.device());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) losses.push_back(run_step(rank, options, job, optimizer));
  wait_for_device(rank.device());
  const double step_ms = ms_since(begin) / count;
  if (!rank.is_main()) return;
  print_exact("host_waits", {static_cast<double>(troupe::host_waits() - waits) / count});
  print_exact("losses", losses);
  print_exact("step_ms", {step_ms});
}

// The device, and the ranks' communicators, go on.
void check_communicators(troupe::Rank& rank) {
  const auto one = torch::ones({10}, at::TensorOptions().device(rank.device()));
  rank.all_reduce(one);
  if (one.sum().item<float>() != static_cast<float>(10 * rank.world_size()))
    throw std::runtime_error("a sum after the failure is wrong");
}

// Rank 0 launches what the others never do, sees that it does not end, and aborts. Returns the seconds until all of it
// is over.
double abort_stuck(troupe::Rank& rank) {
  if (rank.world_size() < 2) throw std::invalid_argument("stuck: one rank waits for nobody; start with --ranks 2");
  const troupe::ErrorReport reason{troupe::ErrorCode::aborted, rank.rank(), {}, -1, {}, "on purpose", {}};
  auto group = rank.communicator().split(0, rank.rank());
  const auto tensor = torch::ones({1'000'000}, at::TensorOptions().device(rank.device()));
  group->all_reduce(tensor);
  group->wait_on_host();
  double seconds = 0;
  if (rank.is_main()) {
    std::atomic<bool> over{false};
    std::thread alone([&] {
      try {
        group->all_reduce(tensor, troupe::ReduceOp::sum, "alone");
        group->wait_on_host();
      } catch (const troupe::Error&) {
      }
      over = true;
    });
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const bool was_stuck = !over;
    const auto begin = std::chrono::steady_clock::now();
    group->abort(reason);
    alone.join();
    group.reset();  // waits for the back end's own end
    seconds = ms_since(begin) / 1e3;
    if (!was_stuck) throw std::runtime_error("the collective that one rank did not join was over");
  }
  rank.barrier();
  if (group) group->abort(reason);
  group.reset();
  check_communicators(rank);
  return seconds;
}

// Returns the seconds until rank 0 has given up a communicator of two.
double abandon_set_up(troupe::Rank& rank) {
  auto* cuda = troupe::accelerator();
  if (cuda == nullptr) throw std::invalid_argument("lonely: this program was built without CUDA and NCCL");
  double seconds = 0;
  if (rank.is_main()) {
    troupe::NcclLifeOptions options;
    options.api = cuda->nccl();
    options.name = "lonely";
    options.timeout = std::chrono::seconds(2);
    std::string id;
    if (options.api->unique_id(&id) != troupe::NcclResult::success) throw std::runtime_error("NCCL gives no unique id");
    const auto begin = std::chrono::steady_clock::now();
    try {
      troupe::NcclLife life(options);
      life.connect(2, 0, id);
      throw std::runtime_error("the set-up was over without rank 1");
    } catch (const troupe::Error& error) {
      if (error.code() != troupe::ErrorCode::timeout) throw;
    }
    seconds = ms_since(begin) / 1e3;
  }
  rank.barrier();
  check_communicators(rank);
  return seconds;
}

double time_launches(troupe::Rank& rank, int count) {
  const auto tensor = torch::zeros({1000}, at::TensorOptions().device(rank.device()));
  rank.all_reduce(tensor);
  wait_for_device(rank.device());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) rank.all_reduce(tensor);
  const double us = 1e3 * ms_since(begin) / count;
  wait_for_device(rank.device());
  return us;
}

// An index that is out of bounds stops the device's kernel, and with it all that this process has there.
void fail_kernel(const troupe::Rank& rank) {
  const auto device = rank.device();
  torch::zeros({10}, device).index_select(0, torch::full({1}, 99, at::TensorOptions().dtype(at::kLong).device(device)));
}

// Rank 0 reads the lines and tells the others.
void serve(troupe::Rank& rank, const Options& options) {
  const auto job = job_of(rank, options);
  const auto model = rank.distribute(job.model);
  const auto optimizer = rank.make_optimizer(*model);
  if (rank.is_main()) std::printf("ready\n");
  for (;;) {
    std::fflush(stdout);
    std::string line;
    if (rank.is_main() && !std::getline(std::cin, line)) line = "quit";
    line = rank.broadcast_object(line);
    if (line.rfind("block ", 0) == 0) {
      run_block(rank, options, job, *optimizer, std::max(1, std::stoi(line.substr(6))));
    } else if (line == "stuck") {
      const double seconds = abort_stuck(rank);
      if (rank.is_main()) print_exact("abort_s", {seconds});
    } else if (line == "lonely") {
      const double seconds = abandon_set_up(rank);
      if (rank.is_main()) print_exact("set_up_s", {seconds});
    } else if (line.rfind("launches ", 0) == 0) {
      const double us = time_launches(rank, std::max(1, std::stoi(line.substr(9))));
      if (rank.is_main()) print_exact("launch_us", {us});
    } else if (line == "assert") {
      fail_kernel(rank);
      run_step(rank, options, job, *optimizer);
    } else if (line == "quit") {
      return;
    } else {
      throw std::invalid_argument("there is no line '" + line + "'");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  try {
    options = parse(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_steps: %s; tests/gpu/gpu_steps.cpp begins with the options and the lines\n",
                 error.what());
    return 2;
  }
  if (options.ranks > 1) {
    if (std::getenv("RANK") == nullptr) return start_ranks(argv, options.ranks);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  }
  at::globalContext().setBenchmarkCuDNN(true);
  return troupe::main(
      1, argv, [&](troupe::Rank& rank) { serve(rank, options); },
      [&](troupe::Config& config) {
        config.device = options.device;
        config.share_device = options.share_device;
        config.strategy = options.strategy;
        config.fsdp_cpu_offload = options.offload;
        if (options.precision == "bf16" && options.strategy == "fsdp") config.param_dtype = "bfloat16";
        config.cuda_graphs = options.graphs;
        set_optimizer(options.job, config);
        config.collective_timeout = 120;
        if (!options.vote.empty()) config.vote = options.vote;
        config.profile = options.profile;
        config.run_dir = options.run_dir;
        config.save_every = -1;
      });
}
