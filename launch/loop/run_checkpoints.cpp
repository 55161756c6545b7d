#include "launch/loop/run_checkpoints.hpp"

#include <filesystem>

#include "actors/rank/checkpointer.hpp"
#include "actors/strategy/saved_state.hpp"
#include "launch/config/data_order.hpp"
#include "launch/loop/rank_parts.hpp"
#include "launch/loop/validation.hpp"
#include "launch/process/formatted.hpp"
#include "launch/process/rank_lines.hpp"
#include "launch/process/still_saving.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/checkpoint/best_checkpoint.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/rank_state.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tensor_io/checkpoint/stored_checkpoint.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/files/xxh3.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {
namespace {

// A disk that takes longer hangs: then a stop waits no more.
constexpr std::chrono::minutes kLongestSave{10};
constexpr const char *kTasksDone = "tasks_done", *kEnough = "enough", *kBestIsGone = "best_is_gone";

nlohmann::json to_json(const Error& error) {
  return {{"code", static_cast<int>(error.code())},
          {"operation", error.report().operation},
          {"cause", error.report().cause},
          {"remedy", error.report().remedy}};
}

// Whatever the file system's names are in.
std::string words_of(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Error from_json(const nlohmann::json& json, int rank = -1) {
  return Error(ErrorReport{static_cast<ErrorCode>(json.at("code").get<int>()),
                           rank,
                           {},
                           -1,
                           json.at("operation"),
                           json.at("cause"),
                           json.at("remedy")});
}

std::string absolute(const std::string& path) {
  std::error_code failure;
  const auto whole = std::filesystem::absolute(path, failure);
  return path.empty() || failure ? path : whole.lexically_normal().string();
}

DataFacts data_of(const std::map<std::string, std::string>& metadata) {
  return {whole_in(metadata, "samples").value_or(0), hash_in(metadata, "files_hash").value_or(0)};
}

}  // namespace

RunCheckpoints::RunCheckpoints(Rank& rank, Optimizer& optimizer, std::shared_ptr<FolderLock> lock)
    : rank_(rank),
      parts_(parts_of(rank)),
      optimizer_(optimizer),
      lock_(std::move(lock)),
      snapshot_(rank.config().staging_limit_mb << 20),
      latest_(latest_step(rank.config().checkpoint_dir)) {
  const auto& config = rank.config();
  if (config.after_save.empty()) return;
  const AfterSave::Milliseconds timeout(static_cast<std::int64_t>(1000 * config.after_save_timeout));
  after_save_ = std::make_shared<AfterSave>(
      AfterSave::Options{config.after_save, timeout, absolute(config.run_dir), &say_still_saving});
}

void RunCheckpoints::start_checkpointer(const SaveAttempt& first, bool publishes) {
  if (checkpointer_) return;
  CheckpointerOptions options;
  options.directory = rank_.config().checkpoint_dir;
  options.keep_last = rank_.config().keep_last;
  options.rank = rank_.rank();
  options.publishes = publishes;
  options.first = first;
  options.lock = lock_;
  if (after_save_) {
    options.on_saved = [command = after_save_](const CheckpointSaved& saved) {
      command->add({saved.step, absolute(saved.path)});
    };
  }
  options.supervisor = caf::actor_cast<caf::actor>(system_of(rank_).supervisor());
  checkpointer_ = caf::actor_cast<caf::actor>(spawn_checkpointer(system_of(rank_).system(), options));
}

RunCheckpoints::~RunCheckpoints() {
  if (!checkpointer_) return;
  caf::anon_send_exit(checkpointer_, caf::exit_reason::user_shutdown);
  system_of(rank_).compute().mailbox().actor().wait_for(checkpointer_);
}

RunCheckpoints::Position RunCheckpoints::resume(const std::string& selector,
                                                const std::function<void(const std::string&)>& log) {
  auto& compute = system_of(rank_).compute();
  auto& communicator = compute.program_communicator();
  // Rank 0 looks which there are; what it finds, or why it finds none, goes to all, so that nobody waits for a rank
  // that has thrown.
  nlohmann::json header;
  if (rank_.is_main()) {
    try {
      const auto choice = choose_checkpoint(rank_.config().checkpoint_dir, selector);
      auto refused = nlohmann::json::array();
      for (const auto& [path, reason] : choice.refused) refused.push_back({path, reason});
      header = {{"paths", choice.paths}, {"refused", refused}, {"asked", choice.asked}};
    } catch (const Error& error) {
      header = to_json(error);
    }
  }
  const auto text = communicator.broadcast_bytes(words_of(header), 0, "checkpoint");
  auto choice = read_bounded_json(text, "the checkpoints that rank 0 found", {}, [](const nlohmann::json& found) {
    if (found.contains("code")) throw from_json(found);
    CheckpointChoice all{found.at("paths"), {}, found.at("asked")};
    for (const auto& entry : found.at("refused")) all.refused.push_back({entry.at(0), entry.at(1)});
    return all;
  });

  for (const auto& path : choice.paths) {
    Position position;
    std::function<void(bool)> accept;
    std::string saved_config;
    OwnState::Saved own_state;
    std::vector<std::string> notes;
    nlohmann::json outcome = nlohmann::json::object();
    try {
      const CheckpointFolder folder(path);
      const auto& manifest = folder.manifest();
      if (const auto saved = manifest.metadata.find("config"); saved != manifest.metadata.end())
        saved_config = saved->second;
      std::map<std::string, double> counters;
      if (manifest.ranks > 0)
        counters = RankState::from_json(folder.rank_state(0), path + "/" + rank_state_file(0)).counters;
      compute.strategy().saved_state().read_state(folder, optimizer_);
      const auto states = manifest.metadata.find("states");
      own_state = parts_.own_state.read(folder, states == manifest.metadata.end() ? "" : states->second,
                                        [&notes](const std::string& note) { notes.push_back(note); });
      position = {manifest.epoch,
                  manifest.step_in_epoch,
                  manifest.step_in_epoch,
                  data_of(manifest.metadata),
                  whole_in(manifest.metadata, kTasksDone),
                  whole_in(manifest.metadata, kEnough) == manifest.step};
      const auto so_far = BestValidation::read(manifest.metadata);
      if (const auto& config = rank_.config(); rank_.is_main() && config.save_every >= 0 && !config.validate_only) {
        const auto best = best_beside(config.checkpoint_dir, -1, manifest.metadata);
        outcome[kBestIsGone] = best.is_known && !best.step;
      }
      accept = [&compute, so_far, counters, metadata = manifest.metadata,
                step = manifest.step](bool best_is_gone) mutable {
        so_far.keep(compute);
        (best_is_gone ? BestValidation() : so_far).keep_saved(compute);
        metadata["step"] = std::to_string(step);
        compute.strategy().saved_state().load_state(metadata);
        compute.resume_at(step);
        compute.strategy().set_rollback_point();  // or the loss of a rank in the first step would undo it
        const auto scale = counters.find(kLossScale), tracker = counters.find(kLossScaleTracker);
        if (scale != counters.end() && tracker != counters.end())
          compute.loss_scaler().load(scale->second, static_cast<std::int64_t>(tracker->second));
      };
    } catch (const Error& error) {
      auto report = error.report();
      if (report.code == ErrorCode::mismatch && report.remedy.empty())
        report.remedy = remedy_for_model(saved_config, rank_.config());
      outcome = to_json(Error(report));
    }
    const auto outcomes = communicator.all_gather_bytes(words_of(outcome), "checkpoint");
    std::optional<Error> refusal;
    bool best_is_gone = false;  // from the checkpoint folder, as rank 0 sees it
    for (std::size_t rank = 0; rank < outcomes.size() && !refusal; ++rank) {
      refusal =
          read_bounded_json(outcomes[rank], "a rank's word on the checkpoint", {}, [&](const nlohmann::json& word) {
            best_is_gone = best_is_gone || word.value(kBestIsGone, false);
            return word.contains("code") ? std::optional(from_json(word, static_cast<int>(rank))) : std::nullopt;
          });
    }
    if (refusal) {
      refuse_checkpoint(choice, path, *refusal);
      continue;
    }
    compute.strategy().saved_state().publish_state();
    accept(best_is_gone);
    parts_.own_state.accept(own_state);
    for (const auto& note : notes) log("warning: " + note);
    for (const auto& refused : choice.refused) log("refused " + refused.path + ": " + refused.reason);
    log("resume from " + path + ", step " + std::to_string(compute.steps_done()));
    // At an epoch's end any order may follow; in the middle, what was seen is counted in samples of the former order.
    if (position.step_in_epoch > 0) {
      if (const auto again = same_sample(saved_config, rank_.config(), position.step_in_epoch); again > 0)
        log("warning: the batch size has changed, and " + std::to_string(again) + " samples of epoch " +
            std::to_string(position.epoch) + " come again, so that batches are whole");
      for (const auto& change : data_order_changes(saved_config, rank_.config()))
        log("warning: " + change + ": the rest of epoch " + std::to_string(position.epoch) +
            " repeats samples and leaves others out; resume "
            "with the former value until the epoch's end");
    }
    return position;
  }
  throw Error(ErrorCode::internal, "resume", "there was nothing to try");
}

std::string RunCheckpoints::own_state(const Position& position) const {
  RankState mine;
  mine.epoch = position.epoch;
  mine.step_in_epoch = position.step_in_epoch;
  const auto random = at::detail::getDefaultCPUGenerator().get_state();
  mine.rng.assign(random.data_ptr<std::uint8_t>(), random.data_ptr<std::uint8_t>() + random.numel());
  if (const auto& scaler = system_of(rank_).compute().loss_scaler(); scaler.enabled()) {
    mine.counters[kLossScale] = scaler.scale();
    mine.counters[kLossScaleTracker] = static_cast<double>(scaler.growth_tracker());
  }
  return mine.to_json();
}

// Facts for whoever reads it; the same on all ranks.
std::map<std::string, std::string> RunCheckpoints::metadata(const Position& position) const {
  const auto& data = position.data;
  auto& compute = system_of(rank_).compute();
  auto metadata = compute.strategy().saved_state().state();
  metadata["config"] = config_to_json(rank_.config());
  metadata["strategy"] = compute.strategy().name();
  metadata["optimizer"] = optimizer_.name();
  if (!parts_.own_state.empty()) metadata["states"] = parts_.own_state.names();
  metadata["world_size"] = std::to_string(rank_.world_size());
  metadata["run"] = system_of(rank_).options().run_id;
  if (data.samples > 0) metadata["samples"] = std::to_string(data.samples);
  if (data.files != 0) metadata["files_hash"] = std::to_string(data.files);
  if (position.tasks_done) metadata[kTasksDone] = std::to_string(*position.tasks_done);
  if (position.enough) metadata[kEnough] = std::to_string(compute.steps_done());
  metadata["run_dir"] = rank_.config().run_dir;
  metadata["job"] = system_of(rank_).options().job_id;
  const auto best = BestValidation::of(compute);
  (best.step == compute.steps_done() ? best : BestValidation::saved(compute)).write(metadata);
  return metadata;
}

// Another one for each try, of whichever run: of this process, of this generation.
SaveAttempt RunCheckpoints::next_attempt() {
  const auto& compute = system_of(rank_).compute();
  const auto& options = system_of(rank_).options();
  const auto process = options.job_id + " " + std::to_string(options.process.incarnation);
  return {compute.steps_done(), xxh3_text(xxh3(process)) + "-" + std::to_string(compute.membership().generation) + "-" +
                                    std::to_string(++saves_)};
}

void RunCheckpoints::save(const Position& position, bool best) {
  if (rank_.config().save_every < 0) return;
  auto& compute = system_of(rank_).compute();
  compute.settle();
  await_end();
  compute.settle_optimizer(optimizer_);
  // Rank 0 knows how many there were in this generation. When all have come here the save before has ended on all of
  // them, also one that was published without rank 0: only then may a new rank 0 clear away what others left.
  auto attempt = next_attempt();
  attempt.id = compute.program_communicator().all_gather_bytes(attempt.id, "checkpoint").front();
  agree_on_best();
  start_checkpointer(attempt, rank_.is_main());
  auto parts = compute.strategy().saved_state().state_parts(optimizer_, rank_.rank(), rank_.world_size());
  parts_.own_state.check_equal();
  for (auto& part : parts_of_first(parts_.own_state.tensors(), rank_.rank())) parts.push_back(std::move(part));
  send(position, attempt, best, rank_.rank(), rank_.world_size(), std::move(parts));
  fault_point("save", compute.steps_done());
}

// A rank that has replaced another does not hear of the saves before.
void RunCheckpoints::agree_on_best() {
  auto& compute = system_of(rank_).compute();
  const auto best = BestValidation::of(compute);
  const auto mine = std::to_string(BestValidation::saved(compute).step);
  for (const auto& saved : compute.program_communicator().all_gather_bytes(mine, "best checkpoint")) {
    if (saved == std::to_string(best.step)) best.keep_saved(compute);
  }
}

void RunCheckpoints::settle_best(const ValidationReport& report) {
  if (rank_.config().save_every < 0) return;
  if (BestValidation::saved(system_of(rank_).compute()).is_beaten_by(report)) await_end();
  agree_on_best();
}

void RunCheckpoints::save_alone(const Position& position, bool best) {
  auto& strategy = system_of(rank_).compute().strategy();
  if (rank_.config().save_every < 0) return;
  if (strategy.saved_state().shards_state()) {
    print_error_line("warning: step " + std::to_string(system_of(rank_).compute().steps_done()) +
                     " is not saved: the other ranks' shards are out of reach");
    return;
  }
  await_end();
  const auto attempt = next_attempt();
  // A rank that was cut off may learn late that the others have gone on.
  if (const auto theirs = saved_meanwhile(rank_.config().checkpoint_dir, attempt.step, latest_)) {
    print_error_line("warning: step " + std::to_string(attempt.step) +
                     " is not saved: the others have gone on without this rank, and saved step " +
                     std::to_string(*theirs));
    return;
  }
  alone_ = true;
  start_checkpointer(attempt, true);
  auto state = replicated_state(strategy, optimizer_);
  for (auto& tensor : parts_.own_state.tensors()) state.push_back(std::move(tensor));
  send(position, attempt, best, 0, 1, parts_for(state, 0, 1));
  await_end();
  if (latest_ == attempt.step && !last_path_.empty())
    print_error_line("saved step " + std::to_string(attempt.step) + ": " + last_path_);
}

void RunCheckpoints::send(const Position& position, const SaveAttempt& attempt, bool best, int rank, int ranks,
                          std::vector<TensorPart> parts) {
  auto& compute = system_of(rank_).compute();
  auto part = std::make_shared<CheckpointPart>();
  part->step = attempt.step;
  part->epoch = position.epoch;
  part->step_in_epoch = position.step_in_epoch;
  part->rank = rank;
  part->ranks = ranks;
  part->metadata = metadata(position);
  part->rank_state = own_state(position);
  part->tensors = std::move(parts);
  const auto live = snapshot_.take(*part);
  compute.mailbox().actor().send(checkpointer_,
                                 SaveCheckpoint{std::move(part), attempt, compute.membership().generation, best, live});
  compute.begins_save(attempt.id);
  under_way_ = true;
  best_ = best;
  lost_ = false;
  // What did not fit into the copy must not change before it is written.
  for (bool copied = live == 0; !copied && under_way_;) copied = await(true);
}

// Whether PartCopied came (`copied`), or the save ended. The disk may take its time: the coordinator says for whom a
// save waits.
bool RunCheckpoints::await(bool copied, std::chrono::seconds at_most) {
  bool came = false;
  const bool speaks = rank_.is_main() || alone_;
  system_of(rank_).compute().mailbox().actor().receive(
      [&](CheckpointSaved& saved) {
        last_path_ = saved.path;
        latest_ = saved.step;
        if (auto& compute = system_of(rank_).compute(); best_) BestValidation::of(compute).keep_saved(compute);
        under_way_ = false;
        failure_.reset();
        if (!saved.warning.empty() && speaks) print_error_line("warning: " + saved.warning);
        const auto& on_save = parts_.callbacks.on_save;
        if (on_save && rank_.is_main() && !saved.path.empty()) on_save(saved.path);
      },
      [&](CheckpointFailed& failed) {
        under_way_ = false;
        lost_ = failed.report.code == ErrorCode::peer_lost;
        if (!lost_) failure_ = failed.report;
        if (speaks)
          print_error_line("warning: the checkpoint of step " + std::to_string(failed.step) +
                           " was not saved: " + failed.report.to_string());
      },
      [&](PartCopied&) { came = true; }, caf::after(at_most) >> [] {});
  return copied && came;
}

void RunCheckpoints::look() {
  if (under_way_) (void)await(false, std::chrono::seconds(0));
}

std::vector<AfterSaveEnd> RunCheckpoints::after_save_ends(bool wait) {
  if (!after_save_) return {};
  if (wait) after_save_->wait();
  return after_save_->take_ended();
}

void RunCheckpoints::await_end() {
  const auto hangs_at = std::chrono::steady_clock::now() + kLongestSave;
  while (under_way_) {
    if (std::chrono::steady_clock::now() < hangs_at) say_still_saving();
    await(false);
  }
}

std::string RunCheckpoints::finish(const std::function<void()>& again) {
  for (bool tried_again = false;;) {
    await_end();
    // The disk may have room again.
    const bool failed = failure_ && failure_->code == ErrorCode::io && !std::exchange(tried_again, true);
    // A rank that has replaced another knows nothing of what was saved before.
    bool lost = false;
    std::string path;
    for (const auto& text : system_of(rank_).compute().program_communicator().all_gather_bytes(
             (lost_ || failed ? "-" : "+") + last_path_, "last checkpoint")) {
      lost = lost || text.starts_with("-");
      if (path.empty()) path = text.substr(1);
    }
    lost_ = false;
    if (!lost || !again) return agree_on_best(), path;
    again();
  }
}

}  // namespace troupe
