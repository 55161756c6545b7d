#pragma once
#include <caf/all.hpp>

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "actors/messages/messages.hpp"
#include "actors/rank/data_cursor.hpp"
#include "actors/rank/rank_supervisor.hpp"
#include "tensor_io/data/dataset.hpp"
#include "tensor_io/data/device_feed.hpp"
#include "tensor_io/data/sampler.hpp"

namespace troupe {

struct DataLoaderOptions {
  int rank = 0;
  std::shared_ptr<const Dataset> dataset;
  SamplerOptions sampler;
  DataCursor start;
  std::int64_t epochs = 1;     ///< the first epoch that is not loaded any more
  std::int64_t max_steps = 0;  ///< optimizer steps of this loader; 0: no limit
  std::int64_t num_workers = 1;
  std::int64_t prefetch = 2;               ///< batches that may be ahead of the consumer's credits
  std::shared_ptr<const DeviceFeed> feed;  ///< if the rank trains on a device: the batches go there; else empty
  caf::actor consumer;  ///< gets BatchLoaded in order, DataEnded at the end, RankFailed if the data set throws
  RankSupervisorActor supervisor;
};

/// One micro-batch to load, and its place in the order.
struct BatchOrder {
  std::int64_t ticket = 0;
  std::int64_t epoch = 0, step = 0, micro_batch = 0;
  bool last_of_step = true, last_of_epoch = false;
};

/// The order of all micro-batches from a cursor on. Pure.
class BatchSchedule {
 public:
  BatchSchedule(const DistributedSampler& sampler, DataCursor start, std::int64_t epochs, std::int64_t max_steps);
  std::optional<BatchOrder> next();

 private:
  std::int64_t steps_per_epoch_, micro_batches_, epochs_, steps_left_;
  bool limited_;
  BatchOrder upcoming_;
};

/// A worker's result, to the loader itself.
struct BatchDone {
  std::int64_t ticket = 0;
  std::shared_ptr<const Batch> batch;  // empty: `report` says why
  double load_ms = 0;
  std::int64_t loaded_ns = 0;  // steady clock
  ErrorReport report;
};

/// The span of a batch that is loaded, on the thread that loads it.
constexpr const char* kLoadSpan = "load batch";

/// Makes the batch of an order: the sampler's indices, the data set's values. Any thread.
class BatchMaker {
 public:
  BatchMaker(const DataLoaderOptions& options, const DistributedSampler& sampler);
  /// Catches the data set's exceptions: the report has them.
  BatchDone load(const BatchOrder& order) const;

 private:
  int rank_;
  std::shared_ptr<const Dataset> dataset_;
  std::shared_ptr<const DeviceFeed> feed_;
  DistributedSampler sampler_;
};

/// Batches without an actor, for data whose batch takes less time than waking a thread to make it. Each is made on
/// request, in the calling thread. The same batches in the same order.
class DirectLoader {
 public:
  /// Whether it is the quicker way: the data set says so (Dataset::quick), and nothing is to be copied to a device.
  static bool suits(const DataLoaderOptions& options);
  explicit DirectLoader(const DataLoaderOptions& options);
  /// Empty after the last; a result without a batch has the reason.
  std::optional<BatchDone> next();

 private:
  DirectLoader(const DataLoaderOptions& options, const DistributedSampler& sampler);

  BatchSchedule schedule_;
  BatchMaker maker_;
};

/// Threads that load batches; they live as long as the loader, across epochs. With `num_workers` 0 the caller's thread
/// does the work.
class LoaderWorkers {
 public:
  using Done = std::function<void(BatchDone)>;
  LoaderWorkers(std::int64_t num_workers, BatchMaker maker, Done done);
  ~LoaderWorkers();
  void submit(const BatchOrder& order);

 private:
  void run();

  // Constant after construction.
  BatchMaker maker_;
  Done done_;
  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<BatchOrder> orders_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

/// Reads, decodes and batches ahead, bounded: at most `prefetch` batches beyond the consumer's credits are under way or
/// waiting. Batches come in the order of the schedule, with any number of workers. Holds the cursor.
using DataLoaderActor = caf::typed_actor<caf::reacts_to<GrantBatches>, caf::reacts_to<BatchDone>>;

struct DataLoaderState {
  DataLoaderActor::behavior_type make_behavior();
  void fill();
  void deliver();
  void done(const BatchDone& result);

  DataLoaderActor::pointer self = nullptr;
  DataLoaderOptions options;
  std::optional<BatchSchedule> schedule;
  std::unique_ptr<LoaderWorkers> workers;
  std::map<std::int64_t, BatchDone> finished;  // by ticket, waiting for their turn or for a credit
  std::int64_t submitted = 0, delivered = 0;
  std::int64_t credits = 0;
  bool exhausted = false, ended = false, failed = false;
  static inline const char* name = "data loader";
};

DataLoaderActor::behavior_type data_loader(DataLoaderActor::stateful_pointer<DataLoaderState> self,
                                           DataLoaderOptions options);

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::BatchDone)
