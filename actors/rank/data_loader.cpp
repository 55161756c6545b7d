#include "actors/rank/data_loader.hpp"

#include <chrono>

#include "tensor_io/base/span_ranges.hpp"
#include "tensor_io/base/steady_time.hpp"

namespace troupe {

BatchSchedule::BatchSchedule(const DistributedSampler& sampler, DataCursor start, std::int64_t epochs,
                             std::int64_t max_steps)
    : steps_per_epoch_(sampler.steps_per_epoch()),
      micro_batches_(sampler.options().micro_batches),
      epochs_(epochs),
      steps_left_(max_steps),
      limited_(max_steps > 0) {
  upcoming_.epoch = start.epoch + start.step / steps_per_epoch_;
  upcoming_.step = start.step % steps_per_epoch_;
}

std::optional<BatchOrder> BatchSchedule::next() {
  if (upcoming_.epoch >= epochs_ || (limited_ && steps_left_ == 0)) return std::nullopt;
  auto order = upcoming_;
  order.last_of_step = order.micro_batch + 1 == micro_batches_;
  order.last_of_epoch = order.last_of_step && order.step + 1 == steps_per_epoch_;
  ++upcoming_.ticket;
  if (++upcoming_.micro_batch == micro_batches_) {
    upcoming_.micro_batch = 0;
    --steps_left_;
    if (++upcoming_.step == steps_per_epoch_) {
      upcoming_.step = 0;
      ++upcoming_.epoch;
    }
  }
  return order;
}

LoaderWorkers::LoaderWorkers(std::int64_t num_workers, BatchMaker maker, Done done)
    : maker_(std::move(maker)), done_(std::move(done)) {
  for (std::int64_t i = 0; i < num_workers; ++i) threads_.emplace_back([this] { run(); });
}

LoaderWorkers::~LoaderWorkers() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void LoaderWorkers::submit(const BatchOrder& order) {
  if (threads_.empty()) {
    done_(maker_.load(order));
    return;
  }
  {
    std::lock_guard lock(mutex_);
    orders_.push_back(order);
  }
  wake_.notify_one();
}

void LoaderWorkers::run() {
  name_range_thread("data loader");
  for (;;) {
    BatchOrder order;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !orders_.empty(); });
      if (stopping_) return;
      order = orders_.front();
      orders_.pop_front();
    }
    done_(maker_.load(order));
  }
}

BatchMaker::BatchMaker(const DataLoaderOptions& options, const DistributedSampler& sampler)
    : rank_(options.rank), dataset_(options.dataset), feed_(options.feed), sampler_(sampler) {}

BatchDone BatchMaker::load(const BatchOrder& order) const {
  const OpenRange range(kLoadSpan);
  BatchDone result;
  result.ticket = order.ticket;
  const auto started = std::chrono::steady_clock::now();
  const auto failed = [&](ErrorCode code, const std::string& cause) {
    result.report = {.code = code,
                     .rank = rank_,
                     .actor = "data loader",
                     .operation = "batch of step " + std::to_string(order.step) + " in epoch " +
                                  std::to_string(order.epoch) + " of " + dataset_->name(),
                     .cause = cause};
  };
  try {
    const auto sampled = sampler_.batch(order.epoch, order.step, order.micro_batch);
    auto loaded = dataset_->get_batch(sampled.indices, SampleContext{sampler_.options().seed, order.epoch});
    auto batch = std::make_shared<Batch>(feed_ ? feed_->send(std::move(loaded)) : std::move(loaded));
    batch->epoch = order.epoch;
    batch->step = order.step;
    batch->micro_batch = order.micro_batch;
    batch->counted = sampled.counted;
    batch->weight = sampled.weight;
    batch->last_of_step = order.last_of_step;
    batch->last_of_epoch = order.last_of_epoch;
    result.batch = std::move(batch);
  } catch (const Error& error) {
    failed(error.code(), error.what());
  } catch (const std::exception& error) {
    failed(ErrorCode::user, error.what());
  } catch (...) {
    failed(ErrorCode::user, "an exception that is not a std::exception");
  }
  result.load_ms = milliseconds_since(started);
  result.loaded_ns = steady_now_ns();
  return result;
}

bool DirectLoader::suits(const DataLoaderOptions& options) {
  const auto& sampler = options.sampler;
  return options.feed == nullptr &&
         options.dataset->quick(sampler.batch_size / sampler.micro_batches / sampler.world_size);
}

DirectLoader::DirectLoader(const DataLoaderOptions& options)
    : DirectLoader(options, DistributedSampler(options.sampler)) {}

DirectLoader::DirectLoader(const DataLoaderOptions& options, const DistributedSampler& sampler)
    : schedule_(sampler, options.start, options.epochs, options.max_steps), maker_(options, sampler) {}

std::optional<BatchDone> DirectLoader::next() {
  const auto order = schedule_.next();
  if (!order) return std::nullopt;
  return maker_.load(*order);
}

DataLoaderActor::behavior_type data_loader(DataLoaderActor::stateful_pointer<DataLoaderState> self,
                                           DataLoaderOptions options) {
  auto& state = self->state;
  state.self = self;
  state.options = std::move(options);
  const DistributedSampler sampler(state.options.sampler);
  state.schedule.emplace(sampler, state.options.start, state.options.epochs, state.options.max_steps);
  const auto address = caf::actor_cast<DataLoaderActor>(self);
  // Results come back as messages: the state has one owner.
  state.workers =
      std::make_unique<LoaderWorkers>(state.options.num_workers, BatchMaker(state.options, sampler),
                                      [weak = caf::actor_cast<caf::weak_actor_ptr>(address)](BatchDone result) {
                                        if (const auto loader = caf::actor_cast<caf::strong_actor_ptr>(weak))
                                          caf::anon_send(caf::actor_cast<DataLoaderActor>(loader), std::move(result));
                                      });
  return state.make_behavior();
}

DataLoaderActor::behavior_type DataLoaderState::make_behavior() {
  fill();
  return {
      [this](const GrantBatches& grant) {
        credits += grant.credits;
        deliver();
      },
      [this](const BatchDone& result) { done(result); },
  };
}

void DataLoaderState::fill() {
  while (!exhausted && !failed && submitted - delivered < options.prefetch + options.num_workers) {
    const auto order = schedule->next();
    if (!order) {
      exhausted = true;
      break;
    }
    ++submitted;
    workers->submit(*order);
  }
}

void DataLoaderState::done(const BatchDone& result) {
  if (failed) return;
  finished.emplace(result.ticket, result);
  deliver();
}

void DataLoaderState::deliver() {
  while (credits > 0 && !failed) {
    const auto next = finished.find(delivered);
    if (next == finished.end()) break;
    if (!next->second.batch) {
      failed = true;
      // The consumer first: the abort that the supervisor causes must not reach it before the reason does.
      caf::anon_send(options.consumer, RankFailed{next->second.report});
      self->send(options.supervisor, RankFailed{next->second.report});
      return;
    }
    caf::anon_send(options.consumer, BatchLoaded{next->second.batch, next->second.load_ms, next->second.loaded_ns});
    finished.erase(next);
    ++delivered;
    --credits;
    fill();
  }
  if (exhausted && delivered == submitted && !ended) {
    ended = true;
    caf::anon_send(options.consumer, DataEnded{});
  }
}

}  // namespace troupe
