#include "launch/run/run_choice.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "launch/process/displayable.hpp"
#include "launch/run/checkpoint_owner.hpp"
#include "launch/run/other_runs.hpp"
#include "launch/run/run_file.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr const char *kCheckpoints = "checkpoints", *kBestName = "best";

bool names_best(const std::string& folder) {
  std::error_code failure;
  return fs::is_regular_file(fs::path(folder) / kBestName, failure);
}

bool has_checkpoints(const std::string& folder) {
  try {
    return !list_checkpoints(folder).empty();
  } catch (const Error&) {
    return false;  // who reads them says why they can't be read
  }
}

struct EarlierRun {
  std::string id, folder, program;
  std::string started;  // its last life
};

std::optional<EarlierRun> run_in(const std::string& folder) {
  const auto facts = run_facts(folder);
  EarlierRun run{text_of(facts, "run_id"), folder, {}, text_of(facts, "started")};
  if (facts.is_object() && facts.contains("lives") && facts["lives"].is_array() && !facts["lives"].empty())
    run.started = text_of(facts["lives"].back(), "started");
  if (run.id.empty()) run.id = text_of(facts, "job_id");  // of an older version
  if (run.id.empty()) return std::nullopt;
  const auto command = facts.find("command");
  if (command != facts.end() && command->is_array() && !command->empty() && command->front().is_string())
    run.program = fs::path(command->front().get<std::string>()).filename().string();
  return run;
}

// Those of a program below runs/, the newest first.
std::vector<EarlierRun> runs_of(const std::string& program) {
  std::vector<EarlierRun> runs;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(kRunsFolder, failure)) {
    if (entry.is_symlink(failure) || !entry.is_directory(failure)) continue;
    auto run = run_in(entry.path().string());
    if (run && (run->program == fs::path(program).filename().string() || is_folder_of(run->folder, program)))
      runs.push_back(std::move(*run));
  }
  std::sort(runs.begin(), runs.end(),
            [](const auto& a, const auto& b) { return std::tie(a.started, a.folder) > std::tie(b.started, b.folder); });
  return runs;
}

// `RUN@STEP` as the two.
std::pair<std::string, std::optional<std::int64_t>> split_step(const std::string& resume) {
  const auto at = resume.rfind('@');
  const auto digits = at == std::string::npos ? std::string() : resume.substr(at + 1);
  const bool number = !digits.empty() && digits.size() < 18 &&
                      std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (!number) return {resume, std::nullopt};
  return {resume.substr(0, at), std::stoll(digits)};
}

class Chooser {
 public:
  Chooser(const RunSettings& settings, const RunIdentity& fresh, const std::string& program)
      : settings_(settings), fresh_(fresh), program_(program) {}

  RunChoice choose() {
    if (settings_.resume.empty()) return new_run();
    const bool may_begin = settings_.resume == "auto";
    if (!may_begin && settings_.resume != "latest") return named();
    if (!a_folder_is_given()) return newest(may_begin, false);
    const auto folder = checkpoint_folder(settings_.checkpoint_dir, given(settings_.run_dir) ? settings_.run_dir : "");
    if (may_begin && !has_checkpoints(folder)) return new_run();
    return of_checkpoints(folder, "latest");
  }

 private:
  static bool given(const std::string& folder) { return folder != kNewRunFolder; }
  bool a_folder_is_given() const {
    return (given(settings_.run_dir) && !settings_.run_dir.empty()) || given(settings_.checkpoint_dir);
  }

  // Of the run whose folder the settings name.
  std::optional<std::string> id_given() const {
    return given(settings_.run_dir) && !settings_.run_dir.empty() ? run_id_in(settings_.run_dir) : std::nullopt;
  }

  RunChoice with_folder(std::string id, std::string resume, const std::string& folder) const {
    RunChoice run;
    run.id = std::move(id);
    run.is_new_folder = folder == kNewRunFolder;
    run.folder = run.is_new_folder ? run_folder_of(fresh_, program_) : folder;
    run.checkpoint_dir = checkpoint_folder(settings_.checkpoint_dir, run.folder);
    run.resume = std::move(resume);
    return run;
  }

  RunChoice new_run() const { return with_folder(fresh_.id, "", settings_.run_dir); }

  // Goes on in the run's own folder, if the settings name no other.
  RunChoice of_run(const EarlierRun& run, std::optional<std::int64_t> step) const {
    auto choice = with_folder(run.id, "latest", given(settings_.run_dir) ? settings_.run_dir : run.folder);
    const auto there = checkpoint_folder(settings_.checkpoint_dir, run.folder);
    if (step) choice.resume = there + "/" + step_folder_name(*step);
    if (there != choice.checkpoint_dir && !step) choice.resume = there;
    return choice;
  }

  // A checkpoint, or a folder of them: says itself which run it is of.
  RunChoice of_checkpoints(const std::string& path, const std::string& resume) const {
    const auto metadata = checkpoint_facts(path);
    // The run's own folder says it for all checkpoints in it, and for those that do not name their run.
    const bool is_own = is_in(path, checkpoint_folder(kNewRunFolder, settings_.run_dir));
    const bool names_run = !text_of(metadata, "run").empty();
    const auto id =
        is_own || !names_run ? id_given().value_or(run_id_of(metadata).value_or(fresh_.id)) : text_of(metadata, "run");
    const auto its_folder = text_of(metadata, "run_dir");
    const bool goes_on_there = !given(settings_.run_dir) && !its_folder.empty() && run_id_in(its_folder) == id;
    return with_folder(id, resume, goes_on_there ? its_folder : settings_.run_dir);
  }

  RunChoice newest(bool may_begin, bool best) const {
    const auto runs = runs_of(program_);
    const std::string wanted = best ? "best checkpoint" : "checkpoint";
    for (const auto& run : runs) {
      const auto there = checkpoint_folder(kNewRunFolder, run.folder);
      if (best ? !names_best(there) : !has_checkpoints(there)) continue;
      auto choice = of_run(run, std::nullopt);
      choice.note = "goes on with " + run.folder;
      if (&run != &runs.front()) choice.note += "; " + runs.front().folder + " is newer and has no " + wanted;
      if (best) choice.resume = path_meant(there + "/" + kBestName);
      return choice;
    }
    if (may_begin) return new_run();
    throw Error(ErrorCode::unavailable, "resume",
                "no run of " + displayable(fs::path(program_).filename().string(), 80) + " below " + kRunsFolder +
                    "/ has a " + wanted,
                best ? "it is saved after a validation; --resume latest takes the newest checkpoint" : start_one());
  }

  RunChoice named() const {
    const auto& text = settings_.resume;
    std::error_code failure;
    // What is there comes before what the text may mean otherwise.
    const auto beside = checkpoint_folder(settings_.checkpoint_dir, given(settings_.run_dir) ? settings_.run_dir : "");
    for (const auto& path : {text, beside + "/" + text}) {
      if (fs::is_regular_file(path, failure)) {  // `best` and `latest` name a checkpoint
        const auto meant = path_meant(path);
        if (meant != path) return of_checkpoints(meant, meant);
      }
      if (fs::exists(fs::path(path) / "manifest.json", failure) || has_checkpoints(path))
        return of_checkpoints(path, text);
    }
    const auto [name, step] = split_step(text);
    for (const auto& folder : {name, std::string(kRunsFolder) + "/" + name}) {
      auto run = run_in(folder);
      if (!run) continue;
      if (fs::is_symlink(folder, failure))  // runs/latest
        run->folder = (fs::path(folder).parent_path() / fs::read_symlink(folder, failure)).lexically_normal().string();
      const auto there = checkpoint_folder(settings_.checkpoint_dir, run->folder);
      if (!step && !has_checkpoints(there))
        throw Error(ErrorCode::unavailable, "resume", displayable(run->folder, 200) + " has no checkpoint",
                    start_one());
      if (step && !fs::exists(fs::path(there) / step_folder_name(*step), failure)) throw no_such_step(there, *step);
      return of_run(*run, step);
    }
    if (text == kBestName && !a_folder_is_given()) return newest(false, true);
    // choose_checkpoint says what it is, or that it is nothing.
    return with_folder(id_given().value_or(fresh_.id), text, settings_.run_dir);
  }

  std::string start_one() const {
    return settings_.asked_to_resume ? "leave --resume out to start one"
                                     : "train first, or name a checkpoint: --resume PATH";
  }

  Error no_such_step(const std::string& folder, std::int64_t step) const {
    std::string steps;
    for (const auto& entry : list_checkpoints(folder))
      steps += (steps.empty() ? "" : ", ") + std::to_string(entry.step);
    return {ErrorCode::usage, "resume", displayable(folder, 200) + " has no checkpoint of step " + std::to_string(step),
            steps.empty() ? start_one() : "it has those of steps " + steps};
  }

  const RunSettings& settings_;
  const RunIdentity& fresh_;
  const std::string& program_;
};

// It reads the checkpoint that `choice` goes on from, and has records apart from that run's.
RunChoice apart(const RunSettings& settings, const RunIdentity& fresh, const std::string& program, RunChoice choice) {
  const bool is_given = settings.run_dir != kNewRunFolder;
  if (is_given && run_id_in(settings.run_dir).value_or(fresh.id) != fresh.id) {
    throw Error(ErrorCode::usage, "run_dir",
                displayable(settings.run_dir, 200) + " is a run's folder, and validate_only keeps records of its own",
                "--resume " + displayable(settings.run_dir, 200) + " reads that run; leave --run_dir out");
  }
  if (choice.resume == "latest") choice.resume = choice.checkpoint_dir;
  if (!choice.note.empty()) choice.note = "reads " + choice.resume;
  choice.id = fresh.id;
  choice.is_apart = true;
  choice.is_new_folder = !is_given;
  choice.folder = is_given ? settings.run_dir : run_folder_of(fresh, program);
  choice.checkpoint_dir = checkpoint_folder(settings.checkpoint_dir, choice.folder);
  return choice;
}

}  // namespace

std::string checkpoint_folder(const std::string& checkpoint_dir, const std::string& run_folder) {
  if (checkpoint_dir != kNewRunFolder) return checkpoint_dir;
  return run_folder.empty() ? kCheckpoints : run_folder + "/" + kCheckpoints;
}

std::optional<std::string> run_id_in(const std::string& folder) {
  const auto run = run_in(folder);
  if (!run) return std::nullopt;
  return run->id;
}

RunChoice choose_run(const RunSettings& settings, const RunIdentity& fresh, const std::string& program) {
  auto choice = Chooser(settings, fresh, program).choose();
  if (!settings.validate_only) refuse_other_runs(choice, settings.resume, fresh.id);
  return settings.validate_only ? apart(settings, fresh, program, std::move(choice)) : choice;
}

}  // namespace troupe
