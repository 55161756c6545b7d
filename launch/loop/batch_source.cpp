#include "launch/loop/batch_source.hpp"

#include <algorithm>
#include <utility>

#include "launch/loop/batch_stream.hpp"
#include "launch/loop/rank_parts.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/base/trace.hpp"
#include "tensor_io/data/sampler.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {
namespace {

// Of Compute::notes: steps done, and the epoch and step of the data to come.
constexpr const char* kCursorNote = "data_cursor";

// A batch was loaded, in whichever thread.
void trace_load(double load_ms, std::int64_t loaded_ns) {
  if (active_track() == nullptr) return;
  auto& track = trace_recorder()->track("data loader");
  TraceEvent load;
  load.set_name(kLoadSpan);
  load.begin_ns = loaded_ns - static_cast<std::int64_t>(load_ms * 1e6);
  load.end_ns = loaded_ns;
  if (load.begin_ns >= track.began_ns()) track.add(load);
}

// For a run that goes on at `start` with other data.
std::string what_follows(const DataCursor& start, std::int64_t steps) {
  const auto epoch = std::to_string(start.epoch);
  if (start.step == 0) return ": epoch " + epoch + " begins with the new data";
  if (start.step >= steps) return ": epoch " + epoch + " is over: it now has " + std::to_string(steps) + " steps";
  return ": the rest of epoch " + epoch + " repeats samples and leaves others out";
}

}  // namespace

BatchSource::BatchSource(Rank& rank, RankParts& parts, std::shared_ptr<const Dataset> dataset)
    : rank_(rank), parts_(parts), dataset_(std::move(dataset)) {
  if (auto* const former = parts.position.source()) former->stop();  // what it has under way is not this one's
  auto& compute = system_of(rank).compute();
  compute.set_dataset(dataset_->size(), dataset_->files_hash());
  const auto& config = rank.config();
  compute.expect_elements(
      static_cast<double>(config.batch_size * std::max<std::int64_t>(1, dataset_->tokens_per_sample())));
  compute.split_batches(config.batch_size / config.grad_accum_steps, system_of(rank).options().world_size);
  const DistributedSampler sampler(sampling());
  const auto steps = sampler.steps_per_epoch();
  steps_done_ = compute.steps_done();
  if (const auto start = parts.position.begin_source(compute.membership().generation > 1)) {
    // Where the epoch has become shorter than what was done of it, the next one begins: none is left out.
    cursor_ = start->step < steps ? *start : DataCursor{start->epoch + 1, 0};
    const auto change = data_change(parts.position.take_start_data(), facts());
    if (!change.empty()) parts.records.log("warning: " + change + what_follows(*start, steps));
  } else {
    cursor_ = cursor_of_others(steps);
  }
  // By steps done, not by the cursor: a run that was resumed with another batch size has done more or fewer than lie
  // before it.
  const auto left = std::max<std::int64_t>(0, (config.epochs - cursor_.epoch) * steps - cursor_.step);
  const auto all = steps_done_ + left;
  parts.schedule.set_length(steps, config.max_steps > 0 ? std::min(config.max_steps, all) : all);
  note_cursor();
  parts.position.set_source(this);
  start();
}

// A newcomer to a running job begins where the others are. A run that was resumed with another batch size need not have
// done as many steps as lie before its cursor, so they say where that is.
DataCursor BatchSource::cursor_of_others(std::int64_t steps_per_epoch) const {
  auto at = steps_done_;
  const auto& notes = system_of(rank_).compute().notes();
  if (const auto note = wholes_in(notes, kCursorNote))
    at = note->at(1) * steps_per_epoch + note->at(2) + steps_done_ - note->at(0);
  return {at / steps_per_epoch, at % steps_per_epoch};
}

void BatchSource::note_cursor() const {
  system_of(rank_).compute().notes()[kCursorNote] =
      std::to_string(steps_done_) + " " + std::to_string(cursor_.epoch) + " " + std::to_string(cursor_.step);
}

SamplerOptions BatchSource::sampling() const {
  const auto& config = rank_.config();
  const auto& compute = system_of(rank_).compute();
  const auto shard = compute.data_shard();
  return {dataset_->size(),
          config.batch_size,
          std::max(config.grad_accum_steps, compute.shares_per_rank()),
          shard.index,
          shard.count,
          config.shuffle,
          config.drop_last,
          config.seed,
          rank_.world_size() != system_of(rank_).options().world_size,
          dataset_->shard_sizes(),
          config.shuffle_buffer,
          compute.batch_split()};
}

void BatchSource::start() {
  const auto& config = rank_.config();
  DataLoaderOptions options;
  options.rank = loader_rank_ = rank_.rank();
  loader_world_size_ = rank_.world_size();
  options.dataset = dataset_;
  options.sampler = sampling();
  loader_shares_ = options.sampler.shares;
  options.start = cursor_;
  options.epochs = config.epochs;
  if (config.max_steps > 0) {
    options.max_steps = std::max<std::int64_t>(0, config.max_steps - steps_done_);
    if (options.max_steps == 0) options.epochs = 0;
  }
  options.num_workers = config.num_workers;
  options.prefetch = config.prefetch;
  if (!rank_.device().is_cpu()) options.feed = std::make_shared<DeviceFeed>(rank_.device());
  options.consumer = system_of(rank_).compute().address();
  options.supervisor = system_of(rank_).supervisor();
  if (config.validate_only) options.epochs = 0;
  ended_ = false;
  if (system_of(rank_).compute().shares_per_rank() > 0) return start_shares(std::move(options));
  if (DirectLoader::suits(options)) {
    direct_.emplace(options);
    return;
  }
  loader_ = caf::actor_cast<caf::actor>(system_of(rank_).system().spawn<caf::detached>(data_loader, options));
  caf::anon_send(loader_, GrantBatches{2});
}

// Which share comes next is known when the one before is done, so nothing is loaded ahead: each is loaded here, when it
// is handed out.
void BatchSource::start_shares(DataLoaderOptions options) {
  share_makers_.clear();
  for (int index = 0; index < loader_world_size_; ++index) {
    options.sampler.rank = index;
    share_makers_.emplace_back(options, DistributedSampler(options.sampler));
  }
}

bool BatchSource::has_more_steps() const {
  const auto& config = rank_.config();
  return !config.validate_only && cursor_.epoch < config.epochs &&
         (config.max_steps <= 0 || steps_done_ < config.max_steps);
}

std::optional<BatchDone> BatchSource::load_share() {
  const auto steps = rank_.steps_per_epoch();
  if (!has_more_steps()) return std::nullopt;
  const auto share = system_of(rank_).compute().strategy().capability<DemandShares>()->next_share();
  BatchOrder order;
  order.epoch = cursor_.epoch;
  order.step = cursor_.step;
  order.micro_batch = share.micro_batch;
  order.last_of_epoch = cursor_.step + 1 == steps;
  return share_makers_.at(static_cast<std::size_t>(share.index)).load(order);
}

void BatchSource::stop() {
  direct_.reset();
  share_makers_.clear();
  if (!loader_) return;
  caf::anon_send_exit(loader_, caf::exit_reason::user_shutdown);
  auto& mailbox = system_of(rank_).compute().mailbox().actor();
  mailbox.wait_for(loader_);
  loader_ = {};
  // What was under way is of no use to the next loader.
  bool more = true;
  while (more) {
    mailbox.receive([](const BatchLoaded&) {}, [](const DataEnded&) {},
                    caf::after(std::chrono::seconds(0)) >> [&] { more = false; });
  }
}

BatchSource::~BatchSource() {
  stop();
  if (parts_.position.source() == this) parts_.position.set_source(nullptr);
}

void BatchSource::committed() {
  if (step_.empty()) return;
  cursor_ = step_.back()->last_of_epoch ? DataCursor{step_.back()->epoch + 1, 0}
                                        : DataCursor{step_.back()->epoch, step_.back()->step + 1};
  ++steps_done_;
  step_.clear();
  note_cursor();
}

void BatchSource::rewind() {
  const auto back = steps_done_ - system_of(rank_).compute().steps_done();
  if (back > 0) {  // all ranks went back to a snapshot
    const auto steps = rank_.steps_per_epoch(), at = cursor_.epoch * steps + cursor_.step - back;
    cursor_ = {at / steps, at % steps};
    steps_done_ -= back;
    note_cursor();
    again_.clear();
    step_.clear();
    stop();
    start();
    return;
  }
  if (!share_makers_.empty()) step_.clear();  // they are handed out anew
  for (; !step_.empty(); step_.pop_back()) again_.push_front(step_.back());
  if (rank_.rank() == loader_rank_ && rank_.world_size() == loader_world_size_ &&
      system_of(rank_).compute().batch_split() == loader_shares_)
    return;
  again_.clear();
  stop();
  start();
}

std::shared_ptr<const Batch> BatchSource::next() {
  for (;;) {
    if (auto batch = take()) return batch;
    try {
      if (parts_.tasks.end_of_steps()) {
        if (parts_.watch) parts_.watch->loop_ends();
        over_ = true;
        return nullptr;
      }
    } catch (const Error& error) {
      rank_.recover(error);
    }
  }
}

std::shared_ptr<const Batch> BatchSource::receive() {
  auto& compute = system_of(rank_).compute();
  const auto loaded = compute.mailbox().receive_next<BatchLoaded, DataEnded>("data loader", "the next batch");
  if (!loaded) return nullptr;
  trace_load(loaded->load_ms, loaded->loaded_ns);
  if (active_track() != nullptr) trace_message("BatchLoaded", "data loader", loaded->loaded_ns - 1);
  parts_.times.count_queue(1e-6 * static_cast<double>(std::max<std::int64_t>(0, steady_now_ns() - loaded->loaded_ns)));
  caf::anon_send(loader_, GrantBatches{1});
  return loaded->batch;
}

std::shared_ptr<const Batch> BatchSource::make_here() {
  system_of(rank_).compute().mailbox().throw_if_interrupted();
  const auto made = direct_ ? direct_->next() : load_share();
  if (!made) return nullptr;
  if (!made->batch) {  // reported as a loader's actor does: to compute first, which throws it
    caf::anon_send(system_of(rank_).compute().address(), RankFailed{made->report});
    caf::anon_send(system_of(rank_).supervisor(), RankFailed{made->report});
    return receive();
  }
  trace_load(made->load_ms, made->loaded_ns);
  return made->batch;
}

std::shared_ptr<const Batch> BatchSource::take() {
  auto& compute = system_of(rank_).compute();
  parts_.tasks.run();
  const auto is_over = [&] {
    return (rank_.stop_requested() || parts_.tasks.are_enough()) && compute.micro_batch() == 0;
  };
  if (is_over()) return nullptr;
  if (compute.micro_batch() == 0) parts_.trace.update(compute.steps_done());
  if (has_more_steps()) compute.enter_step();
  std::optional<TracePhase> waiting(std::in_place, "data");
  fault_point("data", compute.steps_done());
  std::shared_ptr<const Batch> batch;
  while (!batch) {
    if (!again_.empty()) {
      batch = again_.front();
      again_.pop_front();
    } else if (ended_) {
      break;
    } else {
      try {
        batch = direct_ || !share_makers_.empty() ? make_here() : receive();
        ended_ = !batch;
      } catch (const Error& error) {  // the generation was interrupted while this rank waited for data
        rank_.recover(error);
        parts_.tasks.run();  // the loss may have made it due again
        if (is_over()) return nullptr;
        waiting.emplace("data");
      }
    }
  }
  const auto waited_ms = milliseconds_since(waiting->began());
  waiting->end();
  parts_.times.count_data_wait(waited_ms);
  compute.count_data_wait(waited_ms);
  if (!batch) return nullptr;
  DeviceFeed::receive(*batch);
  step_.push_back(batch);
  parts_.micro_batches.begin(batch->numel(), batch->weight);
  if (parts_.watch) parts_.watch->batch(batch->fields());
  return batch;
}

BatchStream::BatchStream(std::unique_ptr<BatchSource> source) : source_(std::move(source)) {}
BatchStream::~BatchStream() = default;
BatchStream::BatchStream(BatchStream&&) noexcept = default;

std::shared_ptr<const Batch> BatchStream::next() { return source_->next(); }

}  // namespace troupe
