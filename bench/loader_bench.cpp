// A loader's batches: JPEG files from a folder, or 28x28 images in memory. bench/README.md says what is computed and
// how ./dev bench drives this program.
//
//   echo "block 24" | build/release/bench/bench_loader folder FOLDER WORKERS
//   echo "block 400" | build/release/bench/bench_loader memory IMAGES WORKERS
#include <caf/all.hpp>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <numeric>
#include <sstream>

#include "actors/rank/data_loader.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/data/image_dataset.hpp"
#include "tensor_io/data/image_folder.hpp"
#include "troupe/troupe.hpp"

namespace bench_loader {

namespace {

constexpr std::int64_t kSide = 28, kClasses = 10, kUntimed = 8;
constexpr std::int64_t kAlwaysByActor = 100;  // WORKERS 102: 2, also where a batch would be made here

struct Job {
  std::shared_ptr<const troupe::Dataset> dataset;
  std::int64_t batch = 0;
};

/// Every file of FOLDER/CLASS, none held out, squares of 224.
Job folder_job(const std::string& folder) {
  troupe::DataOptions options;
  options.data_dir = folder;  // with train/ in it
  options.image_size = 224;
  return {troupe::read_image_folder(options).first, 64};
}

/// FILE: bytes of N images, one behind the other; labels are i mod 10. Normalised as MNIST is.
Job memory_job(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::stringstream content;
  content << in.rdbuf();
  auto bytes = content.str();
  const auto n = static_cast<std::int64_t>(bytes.size()) / (kSide * kSide);
  const auto images = torch::from_blob(bytes.data(), {n, 1, kSide, kSide}, torch::kByte).clone();
  troupe::ImageTransform transform;
  transform.mean = {0.1307F};
  transform.stddev = {0.3081F};
  return {std::make_shared<troupe::ImageDataset>("memory", images, torch::arange(n).remainder(kClasses), kClasses,
                                                 transform),
          128};
}

/// Takes one batch after another as compute does (BatchStream), and does nothing with them: from the loader's actor,
/// or, where the data set is quick, made here.
class Consumer {
 public:
  Consumer(caf::actor_system& system, const Job& job, std::int64_t workers) : self_(system) {
    troupe::DataLoaderOptions options;
    options.dataset = job.dataset;
    options.sampler.dataset_size = job.dataset->size();
    options.sampler.batch_size = job.batch;
    options.epochs = 1'000'000;
    options.num_workers = workers;
    if (workers < kAlwaysByActor && troupe::DirectLoader::suits(options)) {
      direct_.emplace(options);
      return;
    }
    options.num_workers = workers % kAlwaysByActor;
    troupe::RankSupervisorOptions supervisor;
    supervisor.status = std::make_shared<troupe::RankStatus>();
    supervisor_ = system.spawn(troupe::rank_supervisor, supervisor);
    options.consumer = caf::actor(self_);
    options.supervisor = supervisor_;
    loader_ = caf::actor_cast<caf::actor>(system.spawn<caf::detached>(troupe::data_loader, options));
    caf::anon_send(loader_, troupe::GrantBatches{2});
  }
  ~Consumer() {
    if (direct_) return;
    caf::anon_send_exit(loader_, caf::exit_reason::user_shutdown);
    self_->wait_for(loader_);
    caf::anon_send_exit(supervisor_, caf::exit_reason::user_shutdown);
  }
  void take() {
    if (direct_) {
      const auto made = direct_->next();
      if (!made || !made->batch) std::exit(70);
      return;
    }
    self_->receive([&](const troupe::BatchLoaded&) { caf::anon_send(loader_, troupe::GrantBatches{1}); },
                   [&](const troupe::RankFailed& failed) {
                     std::fprintf(stderr, "bench_loader: %s\n", failed.report.to_string().c_str());
                     std::exit(70);
                   },
                   caf::after(std::chrono::seconds(60)) >> [] { std::exit(70); });
  }

 private:
  caf::scoped_actor self_;
  troupe::RankSupervisorActor supervisor_;
  caf::actor loader_;
  std::optional<troupe::DirectLoader> direct_;
};

}  // namespace

int run(int argc, char** argv) {
  if (argc != 4) return std::fputs("usage: bench_loader folder|memory PATH WORKERS\n", stderr), 2;
  torch::set_num_threads(1);
  const auto job = std::string(argv[1]) == "folder" ? folder_job(argv[2]) : memory_job(argv[2]);
  caf::actor_system_config config;
  caf::actor_system system(config);
  Consumer consumer(system, job, std::stoll(argv[3]));
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb, argument;
    words >> verb >> argument;
    if (verb == "block") {
      const auto batches = std::stoll(argument);
      for (std::int64_t i = 0; i < kUntimed; ++i) consumer.take();  // what was made ahead while nobody took it
      const auto start = std::chrono::steady_clock::now();
      for (std::int64_t i = 0; i < batches; ++i) consumer.take();
      std::printf("batch_ms %.6f\n", troupe::milliseconds_since(start) / static_cast<double>(batches));
    } else if (verb == "values") {
      std::vector<std::int64_t> first(32);
      std::iota(first.begin(), first.end(), 0);
      const auto batch = job.dataset->get_batch(first, {});
      std::ofstream(argument, std::ios::binary)
          .write(static_cast<const char*>(batch.input.data_ptr()), static_cast<std::streamsize>(batch.input.nbytes()));
      std::printf("values %s\n", argument.c_str());
    } else {
      break;
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace bench_loader
