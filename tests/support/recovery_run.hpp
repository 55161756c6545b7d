#pragma once
#include <cstring>
#include <map>
#include <regex>

#include <nlohmann/json.hpp>

#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tests/catch.hpp"
#include "tests/support/launch.hpp"

namespace troupe::testing {

/// What the probe is told in the tests of recovery: 32 steps with BatchNorm, LibTorch's dropout, a validation and
/// checkpoints.
inline const std::vector<std::string> kRecoveryProbe = {"--probe_model",  "norm", "--epochs",     "2", "--lr", "0.1",
                                                        "--log_interval", "1",    "--save_every", "8"};

/// By step; `repeated` gets steps that are there more than once.
inline std::map<std::int64_t, double> losses_of(const std::string& text,
                                                std::vector<std::int64_t>* repeated = nullptr) {
  std::map<std::int64_t, double> losses;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto entry = nlohmann::json::parse(line);
    if (entry["kind"] != "train") continue;
    const auto step = entry["step"].get<std::int64_t>();
    if (repeated && losses.contains(step)) repeated->push_back(step);
    losses[step] = entry["loss_metrics/global_avg_loss"].get<double>();
  }
  return losses;
}

/// How often the job's memberships changed, and how many ms each took.
inline std::vector<int> recoveries_in(const std::string& output) {
  std::vector<int> found;
  const std::regex line("troupe: generation \\d+: .*\\(after (\\d+) ms\\)");
  for (auto i = std::sregex_iterator(output.begin(), output.end(), line); i != std::sregex_iterator(); ++i)
    found.push_back(std::stoi((*i)[1]));
  return found;
}

/// How many processes each rank and spare was.
inline std::map<std::string, int> lives_in(const std::string& output) {
  std::map<std::string, int> found;
  const std::regex line("\\[((rank|spare) \\d+)\\] pid");
  for (auto i = std::sregex_iterator(output.begin(), output.end(), line); i != std::sregex_iterator(); ++i)
    ++found[(*i)[1]];
  return found;
}

/// A job of the probe to its end, which must be good and leave no process. `during` acts while it runs; TROUPE_FAULT is
/// `fault`, if that is not empty.
struct RecoveryRun {
  RecoveryRun(int nproc, std::vector<std::string> flags, const std::string& fault, std::vector<std::string> more = {},
              const std::function<void(Launch&)>& during = {}) {
    std::map<std::string, std::string> environment;
    if (!fault.empty()) environment["TROUPE_FAULT"] = fault;
    auto arguments = kRecoveryProbe;
    arguments.insert(arguments.end(), more.begin(), more.end());
    Launch launch(nproc, arguments, flags, environment);
    if (during) during(launch);
    const auto done = launch.finish();
    output = done.output;
    INFO(output);
    REQUIRE(done.code == 0);
    state = load_checkpoint(launch.folder() / "checkpoints", "latest").state;
    losses = losses_of(read_text(launch.folder() / "run/metrics.jsonl"), &repeated);
    CHECK(processes_of(launch.folder().path()).empty());
  }
  /// The same job, but for LibTorch's dropout, on simulated ranks.
  static RecoveryRun of_simulated(int ranks, const std::vector<std::string>& more) {
    ScratchDirectory folder;
    std::vector<std::string> command{TROUPE_RANK_PROBE,      "--ranks",   std::to_string(ranks),
                                     "--batch_size",         "16",        "--checkpoint_dir",
                                     folder / "checkpoints", "--run_dir", folder / "run"};
    command.insert(command.end(), kRecoveryProbe.begin(), kRecoveryProbe.end());
    command.insert(command.end(), {"--probe_model", "ours"});
    command.insert(command.end(), more.begin(), more.end());
    const auto done = RunningProcess(command).finish();
    INFO(done.output);
    REQUIRE(done.code == 0);
    RecoveryRun run;
    run.output = done.output;
    run.state = load_checkpoint(folder / "checkpoints", "latest").state;
    run.losses = losses_of(read_text(folder / "run/metrics.jsonl"), &run.repeated);
    return run;
  }
  std::vector<int> recoveries() const { return recoveries_in(output); }
  std::map<std::string, int> lives() const { return lives_in(output); }

  std::string output;
  TrainingState state;
  std::map<std::int64_t, double> losses;
  std::vector<std::int64_t> repeated;  // steps that are in the metrics more than once

 private:
  RecoveryRun() = default;
};

inline void check_bits(const RecoveryRun& run, const RecoveryRun& reference) {
  CHECK(run.state.step == reference.state.step);
  REQUIRE(run.state.tensors.size() == reference.state.tensors.size());
  for (std::size_t i = 0; i < run.state.tensors.size(); ++i) {
    const auto& [name, tensor] = run.state.tensors[i];
    INFO(name);
    CHECK(name == reference.state.tensors[i].first);
    CHECK(std::memcmp(tensor.contiguous().data_ptr(), reference.state.tensors[i].second.contiguous().data_ptr(),
                      tensor.nbytes()) == 0);
  }
  CHECK((run.losses == reference.losses));
}

/// Four ranks that nothing happens to.
inline const RecoveryRun& undisturbed() {
  static const RecoveryRun run(4, {}, "");
  return run;
}

}  // namespace troupe::testing
