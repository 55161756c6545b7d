// One optimizer step of 8 x Linear(1024), over two processes of this machine: bench/README.md defines the job, the values and the lines by
// which ./dev bench drives this program.
//
//   echo "block 15" | build/release/bench/bench_ddp_mlp --batch 16 [STRATEGY [RANKS [LAYERS [CHECKPOINTS]]]]
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "launch/run_checkpoints.hpp"
#include "tensor_io/checkpoint_writer.hpp"
#include "tensor_io/snapshot.hpp"
#include "tensor_io/state_parts.hpp"
#include "troupe/troupe.hpp"

namespace {

constexpr std::int64_t kWidth = 1024;
constexpr int kBatches = 4;
int ranks = 2, layers = 8;

// Value i of a stream in [-scale, scale): the same bits in every language.
at::Tensor values(std::uint32_t stream, at::IntArrayRef shape, float scale) {
  auto tensor = torch::empty(shape);
  auto* data = tensor.data_ptr<float>();
  const float factor = scale / static_cast<float>(1 << 23);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    auto h = static_cast<std::uint32_t>(i) + stream * 0x9E3779B1u;
    h ^= h >> 16;
    h *= 0x85EBCA6Bu;
    h ^= h >> 13;
    h *= 0xC2B2AE35u;
    h ^= h >> 16;
    data[i] = static_cast<float>(static_cast<std::int32_t>(h >> 8) - (1 << 23)) * factor;
  }
  return tensor;
}

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  for (int layer = 0; layer < layers; ++layer) {
    model->push_back(std::make_shared<troupe::Block<torch::nn::LinearImpl>>(kWidth, kWidth));
    if (layer + 1 < layers) model->push_back(torch::nn::ReLU());
  }
  if (layers == 0) model->push_back(torch::nn::Linear(1, 1));  // what a program takes without a model
  torch::NoGradGuard no_grad;
  std::uint32_t stream = 0;
  for (auto& parameter : model->parameters()) parameter.copy_(values(stream++, parameter.sizes(), 1.0F / 32));
  return model;
}

void write_raw(const std::string& path, const torch::nn::Module& model) {
  std::ofstream file(path, std::ios::binary);
  for (const auto& parameter : model.parameters()) {
    file.write(static_cast<const char*>(parameter.data_ptr()), static_cast<std::streamsize>(parameter.nbytes()));
  }
}

// The most memory that this process had while it lived, pages shared with other processes counted in parts: MiB.
class PeakPss {
 public:
  PeakPss() : thread_([this] { sample(); }) {}
  ~PeakPss() {
    if (thread_.joinable()) stop();
  }
  double stop() {
    stop_ = true;
    thread_.join();
    return peak_ / 1024;
  }

 private:
  void sample() {
    while (!stop_) {
      std::ifstream file("/proc/self/smaps_rollup");
      for (std::string line; std::getline(file, line);) {
        if (line.rfind("Pss:", 0) == 0) peak_ = std::max(peak_, std::atof(line.c_str() + 4));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  }
  std::atomic<bool> stop_ = false;
  double peak_ = 0;  // KiB; the thread's own until it is joined
  std::thread thread_;
};

void print(const char* name, const std::vector<double>& numbers) {
  std::printf("%s", name);
  for (const double number : numbers) std::printf(" %.4f", number);
  std::printf("\n");
}

double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

double thread_cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// What the Checkpointer's thread does with a state that was copied for it: ms of processor time per GiB.
double writer_cpu_ms(const std::string& directory, troupe::Strategy& strategy, troupe::Optimizer& optimizer) {
  troupe::Snapshot snapshot;
  troupe::CheckpointPart part;
  part.tensors = troupe::share_of(troupe::replicated_state(strategy, optimizer), 0, 1);
  part.rank_state = "{}";
  snapshot.take(part.tensors);
  const troupe::SaveAttempt attempt{0, "bench"};
  troupe::CheckpointWriter writer(directory, 1);
  const auto begin = thread_cpu_ms();
  troupe::write_checkpoint_part(directory, attempt, part);
  const auto bytes = writer.publish(attempt, 1, false).bytes;
  return (thread_cpu_ms() - begin) * static_cast<double>(1 << 30) / static_cast<double>(bytes);
}

// Rank 0 reads the lines and tells the others; a rank that waits for the next one sleeps.
void serve(troupe::Rank& rank, std::int64_t batch) {
  auto model = rank.distribute(make_model());
  auto optimizer = rank.make_optimizer(*model);
  std::vector<at::Tensor> inputs, targets;
  const auto r = static_cast<std::uint32_t>(rank.rank());
  const std::int64_t width = layers == 0 ? 1 : kWidth;
  for (std::uint32_t k = 0; k < kBatches; ++k) {
    inputs.push_back(values(1000 + 100 * r + k, {batch, width}, 1));
    targets.push_back(values(2000 + 100 * r + k, {batch, width}, 1));
  }
  troupe::RunCheckpoints checkpoints(rank, *optimizer);
  std::size_t steps = 0;
  if (rank.is_main()) std::printf("ready\n"), std::fflush(stdout);
  for (;;) {
    std::string line;
    if (rank.is_main() && !std::getline(std::cin, line)) line = "quit";
    line = rank.broadcast_object(line);
    const auto space = line.find(' ');
    const auto verb = line.substr(0, space), argument = space == std::string::npos ? std::string() : line.substr(space + 1);
    if (verb == "block" || verb == "memory" || verb == "save") {
      std::vector<double> step_ms, actors_us;
      std::unique_ptr<PeakPss> peak;
      if (verb == "memory") peak = std::make_unique<PeakPss>();
      auto begin_save = std::chrono::steady_clock::now();
      if (verb == "save") checkpoints.save({0, static_cast<std::int64_t>(steps), -1}, false);
      const double blocking_ms = ms_since(begin_save);
      for (int i = 0; i < std::atoi(argument.c_str()); ++i) {
        const auto begin = std::chrono::steady_clock::now();
        const auto loss = torch::mse_loss(model->forward(inputs[steps % kBatches]), targets[steps % kBatches]);
        rank.backward(loss, 0, static_cast<double>(batch), 1);
        const auto report = rank.step(*optimizer);
        step_ms.push_back(ms_since(begin));
        actors_us.push_back(report.message_us);
        ++steps;
      }
      if (verb == "save") {
        begin_save = std::chrono::steady_clock::now();
        checkpoints.finish();
        if (rank.is_main()) print("blocking_ms", {blocking_ms}), print("waited_ms", {ms_since(begin_save)});
      }
      if (peak) {
        const auto peaks = rank.all_gather_object(peak->stop());
        if (rank.is_main()) print("peak_pss_mib", peaks);
      } else if (rank.is_main()) {
        print("actors_us", actors_us), print("step_ms", step_ms);
      }
    } else if (verb == "weights") {
      if (rank.is_main()) write_raw(argument, *model), std::printf("weights %s\n", argument.c_str());
    } else if (verb == "load") {
      const auto begin = std::chrono::steady_clock::now();
      checkpoints.resume("latest", [](const std::string&) {});
      if (rank.is_main()) print("load_ms", {ms_since(begin)});
    } else if (verb == "writer") {
      if (rank.is_main()) print("cpu_ms_per_gib", {writer_cpu_ms(argument, rank.system().compute().strategy(), *optimizer)});
    } else if (verb == "quit") {
      return;
    }
    std::fflush(stdout);
  }
}

// The coordinator listens on the port after the master's, so both must be free.
int free_port() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int first = ::socket(AF_INET, SOCK_STREAM, 0), second = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const bool bound = ::bind(first, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                       ::getsockname(first, reinterpret_cast<sockaddr*>(&address), &length) == 0;
    const int port = ntohs(address.sin_port);
    address.sin_port = htons(static_cast<std::uint16_t>(port + 1));
    const bool next_too = bound && ::bind(second, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(first);
    ::close(second);
    if (next_too) return port;
  }
  return 0;
}

int start_ranks(char** argv) {
  const auto port = std::to_string(free_port());
  ::setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", port.c_str(), 1);
  ::setenv("TORCHELASTIC_RUN_ID", port.c_str(), 1);
  std::vector<pid_t> pids;
  for (int r = 0; r < ranks; ++r) {
    ::setenv("RANK", std::to_string(r).c_str(), 1);
    ::setenv("LOCAL_RANK", std::to_string(r).c_str(), 1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (r > 0) posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    pid_t pid = 0;
    const int failed = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return 71;
    pids.push_back(pid);
  }
  int worst = 0;
  for (const auto pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 70);
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  const char* rank = std::getenv("RANK");
  if (argc < 3 || argc > 7 || std::string(argv[1]) != "--batch" || std::atoi(argv[2]) < 1) {
    std::fprintf(
        stderr,
        "usage: bench_ddp_mlp --batch SAMPLES_PER_RANK [STRATEGY [RANKS [LAYERS [CHECKPOINTS]]]], then lines as in bench/README.md\n");
    return 2;
  }
  const std::string strategy = argc > 3 ? argv[3] : "ddp";
  if (argc > 4) ranks = std::max(1, std::atoi(argv[4]));
  if (argc > 5) layers = std::max(0, std::atoi(argv[5]));
  const std::int64_t batch = std::atoi(argv[2]);
  if (rank == nullptr) return start_ranks(argv);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(std::atoi(rank) % static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
  return troupe::main(
      1, argv, [&](troupe::Rank& mine) { serve(mine, batch); },
      [&](troupe::Config& config) {
        config.strategy = strategy;
        config.optimizer = "adamw";
        config.lr = 1e-3;
        config.weight_decay = 0.01;
        config.collective_timeout = 600;  // the programs take turns
        config.run_dir = "";
        config.save_every = argc > 6 ? 0 : -1;
        if (argc > 6) config.checkpoint_dir = argv[6];
        config.keep_last = 1;
      });
}
