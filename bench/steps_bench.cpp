// Optimizer steps over processes of this machine: bench/README.md defines the jobs, their values and the lines by which
// ./dev bench drives this program.
//
//   echo "block 15" | build/release/bench/bench_steps --batch 16 [--job mlp|gpt|resnet|..] [--strategy ddp] [--ranks 2]
//                                                     [--layers 8] [--comm-hook none] [--early-update true]
//                                                     [--checkpoints FOLDER] [--model FILE] [--channels-last true]
//
// --model: the job's model and loss, compiled by `troupe compile bench/peer/compiled_jobs.py:JOB`.
// Where RANK says which rank it is, it is that rank and starts none.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "actors/strategy/saved_state.hpp"
#include "bench/plain_write.hpp"
#include "bench/processes.hpp"
#include "bench/step_job.hpp"
#include "launch/compiled/compiled_manifest.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/loop/run_checkpoints.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/checkpoint_writer.hpp"
#include "tensor_io/checkpoint/snapshot.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "troupe/compiled.hpp"
#include "troupe/troupe.hpp"

namespace bench_steps {

using namespace step_job;

namespace {

struct Options {
  std::string job = "mlp", strategy = "ddp", comm_hook = "none", checkpoints, model;
  int batch = 0, ranks = 2, layers = 8;  // samples a rank; of mlp
  bool early_update = false, channels_last = false;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(name + " has no value");
    if (name == "--job")
      options.job = argv[i + 1];
    else if (name == "--strategy")
      options.strategy = argv[i + 1];
    else if (name == "--comm-hook")
      options.comm_hook = argv[i + 1];
    else if (name == "--early-update")
      options.early_update = std::string(argv[i + 1]) == "true";
    else if (name == "--model")
      options.model = argv[i + 1];
    else if (name == "--channels-last")
      options.channels_last = std::string(argv[i + 1]) == "true";
    else if (name == "--checkpoints")
      options.checkpoints = argv[i + 1];
    else if (name == "--batch")
      options.batch = std::stoi(argv[i + 1]);
    else if (name == "--ranks")
      options.ranks = std::stoi(argv[i + 1]);
    else if (name == "--layers")
      options.layers = std::stoi(argv[i + 1]);
    else
      throw std::invalid_argument("there is no " + name);
  }
  if (options.batch < 1 || options.ranks < 1 || options.layers < 0)
    throw std::invalid_argument("--batch and --ranks are at least 1");
  if (std::find(kJobs.begin(), kJobs.end(), options.job) == kJobs.end()) throw no_such_job(options.job);
  return options;
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

double thread_cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Of this rank's share of a checkpoint.
std::size_t saved_bytes(troupe::Strategy& strategy, troupe::Optimizer& optimizer, const troupe::Rank& rank) {
  std::size_t bytes = 0;
  for (const auto& part : strategy.saved_state().state_parts(optimizer, rank.rank(), rank.world_size()))
    bytes += part.bytes();
  return bytes;
}

// The job with the model and the loss of a file.
Job compiled(Job job, const std::string& path) {
  job.model = std::make_shared<troupe::CompiledModel>(path);
  job.criterion = [](torch::nn::Module& model, const at::Tensor& input, const at::Tensor& target) {
    troupe::Batch batch;
    batch.input = input;
    batch.target = target;
    return dynamic_cast<troupe::CompiledModel&>(model).loss(batch).value;
  };
  return job;
}

// As Python has them: a compiled model registers its blocks first.
std::vector<at::Tensor> in_order(const torch::nn::Module& model) {
  const auto* file = dynamic_cast<const troupe::CompiledModel*>(&model);
  if (file == nullptr) return model.parameters();
  const auto named = model.named_parameters();
  std::vector<at::Tensor> parameters;
  for (const auto& tensor : file->manifest().tensors) {
    if (!tensor.buffer && tensor.tied.empty()) parameters.push_back(named[tensor.name]);
  }
  return parameters;
}

// What the Checkpointer's thread does with a state that was copied for it: ms of processor time per GiB.
double writer_cpu_ms(const std::string& directory, troupe::Strategy& strategy, troupe::Optimizer& optimizer) {
  troupe::Snapshot snapshot;
  troupe::CheckpointPart part;
  part.tensors = troupe::parts_for(troupe::replicated_state(strategy, optimizer), 0, 1);
  part.rank_state = "{}";
  snapshot.take(part);
  const troupe::SaveAttempt attempt{0, "bench"};
  troupe::CheckpointWriter writer(directory, 1);
  const auto begin = thread_cpu_ms();
  troupe::write_checkpoint_part(directory, attempt, part);
  const auto bytes = writer.publish(attempt, 1, false).bytes;
  return (thread_cpu_ms() - begin) * static_cast<double>(1 << 30) / static_cast<double>(bytes);
}

// What a load comes down to: every rank reads all files of a folder into memory that is there already, and no more.
double plain_read_ms(troupe::Rank& rank, const std::string& folder) {
  static std::vector<char> memory;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::size_t bytes = 0;
  for (const auto& path : paths) bytes += std::filesystem::file_size(path);
  memory.resize(bytes);
  rank.barrier();
  const auto begin = std::chrono::steady_clock::now();
  char* out = memory.data();
  for (const auto& path : paths) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw std::runtime_error("cannot open " + path);
    for (ssize_t got = 0; (got = ::read(file, out, std::size_t{1} << 20)) > 0;) out += got;
    ::close(file);
  }
  rank.barrier();
  return ms_since(begin);
}

// Rank 0 reads the lines and tells the others; a rank that waits for the next one sleeps.
void serve(troupe::Rank& rank, const Options& options) {
  auto job = make_job(options.job, rank.rank(), options.batch, options.layers);
  if (options.channels_last) job = channels_last(std::move(job));
  if (!options.model.empty()) {
    const auto begin = std::chrono::steady_clock::now();
    job = compiled(std::move(job), options.model);
    if (rank.is_main()) print("model_load_ms", {ms_since(begin)});
  }
  const auto model = rank.distribute(job.model);
  auto optimizer = rank.make_optimizer(*model);
  troupe::RunCheckpoints checkpoints(rank, *optimizer);
  std::unique_ptr<PlainWrite> plain;
  std::size_t steps = 0;
  if (rank.is_main()) std::printf("ready\n"), std::fflush(stdout);
  for (;;) {
    std::string line;
    if (rank.is_main() && !std::getline(std::cin, line)) line = "quit";
    line = rank.broadcast_object(line);
    const auto space = line.find(' ');
    const auto verb = line.substr(0, space),
               argument = space == std::string::npos ? std::string() : line.substr(space + 1);
    if (verb == "block" || verb == "memory" || verb == "save" || verb == "write") {
      std::vector<double> step_ms, actors_us;
      std::unique_ptr<PeakPss> peak;
      if (verb == "memory") peak = std::make_unique<PeakPss>();
      const auto& directory = rank.config().checkpoint_dir;
      const auto before = verb == "save" ? troupe::read_pointer(directory, "latest") : std::nullopt;
      const auto is_safe = [&] {
        return verb == "write" ? plain->done() : troupe::read_pointer(directory, "latest") != before;
      };
      int safe_after = 0;
      if (verb == "write") {
        if (!plain)
          plain = std::make_unique<PlainWrite>(saved_bytes(system_of(rank).compute().strategy(), *optimizer, rank));
        rank.barrier();
        plain->begin(directory + "-plain-" + std::to_string(rank.rank()));  // beside the folder, whose files are read
      }
      auto begin_save = std::chrono::steady_clock::now();
      if (verb == "save") checkpoints.save({0, static_cast<std::int64_t>(steps), -1}, false);
      const double blocking_ms = ms_since(begin_save);
      for (int i = 0; i < std::atoi(argument.c_str()); ++i) {
        const auto begin = std::chrono::steady_clock::now();
        rank.backward(troupe::Loss(job.loss(steps)), static_cast<double>(options.batch), 1);
        const auto report = rank.step(*optimizer);
        step_ms.push_back(ms_since(begin));
        actors_us.push_back(report.message_us);
        ++steps;
        if ((verb == "save" || verb == "write") && safe_after == 0 && rank.is_main() && is_safe()) safe_after = i + 1;
      }
      if (verb == "save") {
        begin_save = std::chrono::steady_clock::now();
        checkpoints.finish();
        if (rank.is_main())
          print("blocking_ms", {blocking_ms}), print("waited_ms", {ms_since(begin_save)}),
              print("safe_after", {1.0 * safe_after});
      }
      if (verb == "write") {
        plain->wait();
        if (rank.is_main()) print("safe_after", {1.0 * safe_after});
      }
      if (peak) {
        const auto peaks = rank.all_gather_object(peak->stop());
        if (rank.is_main()) print("peak_pss_mib", peaks);
      } else if (rank.is_main()) {
        print("actors_us", actors_us), print("step_ms", step_ms);
      }
    } else if (verb == "weights") {
      if (rank.is_main()) write_raw(argument, in_order(*model)), std::printf("weights %s\n", argument.c_str());
    } else if (verb == "load") {
      const auto begin = std::chrono::steady_clock::now();
      checkpoints.resume("latest", [](const std::string&) {});
      if (rank.is_main()) print("load_ms", {ms_since(begin)});
    } else if (verb == "read") {
      const double ms = plain_read_ms(rank, argument);
      if (rank.is_main()) print("read_ms", {ms});
    } else if (verb == "writer") {
      if (rank.is_main())
        print("cpu_ms_per_gib", {writer_cpu_ms(argument, system_of(rank).compute().strategy(), *optimizer)});
    } else if (verb == "quit") {
      return;
    }
    std::fflush(stdout);
  }
}

}  // namespace

int run(int argc, char** argv) {
  Options options;
  try {
    options = parse(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_steps: %s; bench/README.md has the options and the lines\n", error.what());
    return 2;
  }
  const char* rank = std::getenv("RANK");
  if (rank == nullptr) return start_ranks(argv, options.ranks);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  pin_to_core(std::atoi(rank));
  return troupe::main(
      1, argv, [&](troupe::Rank& mine) { serve(mine, options); },
      [&](troupe::Config& config) {
        config.strategy = options.strategy;
        config.comm_hook = options.comm_hook;
        config.early_update = options.early_update;
        set_optimizer(options.job, config);
        config.collective_timeout = 600;  // the programs take turns
        config.run_dir = "";
        config.save_every = options.checkpoints.empty() ? -1 : 0;
        if (!options.checkpoints.empty()) config.checkpoint_dir = options.checkpoints;
        config.keep_last = 1;
      });
}

}  // namespace bench_steps
