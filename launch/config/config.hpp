#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "actors/rank/strategy_options.hpp"
#include "actors/step/training_options.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/choice/communicator_settings.hpp"
#include "tensor_io/data/data_options.hpp"
#include "tensor_io/optimizer/optimizer_options.hpp"

namespace troupe {

/// The value of a program's setting.
using ConfigValue = std::variant<bool, std::int64_t, double, std::string>;

/// Every setting of a run, flat: `config.lr`. The file, the flags, the environment, `--help`, `--print-config`, the
/// reference page and the hash all come from one list of fields (config_fields.cpp). Strength: default < file <
/// environment (TROUPE_LR) < flag (--lr).
struct Config : DataOptions, CommunicatorSettings, OptimizerOptions, TrainingOptions, StrategyOptions {
  // How the program starts.
  std::int64_t ranks = 1;    ///< ranks inside this process: a simulated cluster, for tests
  std::string chaos;         ///< the faults that hurt them, see parse_chaos; empty: none
  std::int64_t threads = 0;  ///< LibTorch's threads per rank; 0: one if ranks share the machine, LibTorch's default for
                             ///< a rank alone
  std::string bind_cpus = "off";  ///< off, or node: the process runs on the CPUs near its GPU
  std::string nvtx = "auto";      ///< auto, on, off: spans are ranges of NVTX
  // Rank 0's reports about a run while it goes on, besides run_dir/metrics.jsonl.
  bool progress_bar = true;       ///< on a terminal
  bool tensorboard = true;        ///< event files in run_dir/tensorboard
  std::int64_t metrics_port = 0;  ///< of the live page and Prometheus's /metrics, on rank 0's loopback interface; 0:
                                  ///< none
  std::string mlflow_uri;         ///< of a tracking server, http://127.0.0.1:5000 say; empty: none
  std::string mlflow_experiment = "Default";  ///< made if it is missing
  // Rank 0's action once a checkpoint is on disk.
  std::string after_save;           ///< a command for /bin/sh; empty: none
  double after_save_timeout = 600;  ///< seconds, then it is ended

  /// A setting of the program itself, before parsing; `--dropout 0.2`, `[program] dropout = 0.2`. Its type is that of
  /// the default.
  void declare(const std::string& name, ConfigValue default_value, const std::string& help);
  /// Its value. Throws Error(usage) if it was not declared, or with another type.
  template <class T>
  T get(const std::string& name) const {
    const auto* value = std::get_if<T>(&own(name));
    if (value == nullptr) throw Error(ErrorCode::usage, "config.get", "'" + name + "' was declared with another type");
    return *value;
  }

  /// A setting of the program itself.
  struct Declared {
    std::string help;   ///< for --help
    ConfigValue value;  ///< the default, then what was set
  };
  std::map<std::string, Declared> declared;
  std::map<std::string, std::string> sources;  ///< the source of a value, for fields that are not at their default:
                                               ///< "--lr", "train.toml:3", "TROUPE_LR"
  std::set<std::string> as_begun;  ///< of those, what the program began with as well: a printed config has all values

 private:
  const ConfigValue& own(const std::string& name) const;
};

/// The request of the command line: a run, or one of the others.
enum class ConfigAction { run, help, print_config };

/// Fills `config` from --config FILE, environment and flags. Throws Error(usage) on one line: the place (file:line,
/// variable or flag), the field, the allowed values, and the nearest known name for an unknown one. Refuses arguments
/// that are no flags. `help_topic`: the word after --help, if the caller has help on one setting; see config_help_on.
ConfigAction parse_config(Config& config, int argc, const char* const* argv, std::string* help_topic = nullptr);
/// Reads the file alone, with the same errors.
void read_config_file(Config& config, const std::string& path);
/// Sets one value from its text; `source` names its place.
void set_config_value(Config& config, const std::string& name, const std::string& text, const std::string& source);

/// TOML that reads back equal, with the source of each value as a comment.
std::string config_to_toml(const Config& config);
/// The settings as one JSON object.
std::string config_to_json(const Config& config);
/// Each setting's value, as a user would write it.
std::map<std::string, std::string> config_texts(const Config& config);
/// The page docs/config.md.
std::string config_reference();
/// Of the values that all ranks must share; 16 hexadecimal digits.
std::string config_hash(const Config& config);

}  // namespace troupe
