// The `troupe` command.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "launch/command/completion.hpp"
#include "launch/command/new_project.hpp"
#include "launch/config/command_flags.hpp"
#include "launch/config/config.hpp"
#include "launch/debug/debug_command.hpp"
#include "launch/doctor/doctor.hpp"
#include "launch/doctor/doctor_ranks.hpp"
#include "launch/hosts/slurm.hpp"
#include "launch/jobs/detached_launch.hpp"
#include "launch/jobs/drain_command.hpp"
#include "launch/jobs/jobs_command.hpp"
#include "launch/launcher/coordinator_process.hpp"
#include "launch/launcher/launch_plan.hpp"
#include "launch/launcher/launcher.hpp"
#include "launch/launcher/process_words.hpp"
#include "launch/launcher/shared_keys.hpp"
#include "launch/network/job_keys.hpp"
#include "launch/observe/top.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/terminal.hpp"
#include "launch/report/run_report.hpp"

namespace {

constexpr const char* kLaunchHelp =
    "usage: troupe launch [FLAGS] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Starts the ranks of PROGRAM, shows their output, and replaces a rank that dies.\n"
    "\n"
    "  --nproc N, -n N        ranks on this machine (default 1)\n"
    "  --hosts FILE|LIST      start ranks over ssh: a host file, or a list such as a:8,b:8\n"
    "  --ssh-config FILE      a configuration file for ssh (ssh -F)\n"
    "  --remote-troupe PATH   the troupe command on the hosts (default: its path on this machine)\n"
    "  --address A            with --hosts: where the coordinator listens (default: the address that reaches the "
    "hosts)\n"
    "  --slurm                take the hosts and the time limit from the Slurm job around this command\n"
    "  --nproc-per-node N     ranks on each node of --nnodes or --slurm (default 1, or the tasks that Slurm counts)\n"
    "  --nnodes N|MIN:MAX     run the same command on each of N nodes; MIN:MAX: begin with MIN, others may join "
    "later\n"
    "  --node-rank K          with --nnodes: the number of this node, from 0 (default 0)\n"
    "  --master-addr A        with --nnodes: the address of node 0 (default 127.0.0.1)\n"
    "  --master-port P        with --nnodes: the port of the coordinator on node 0 (default 29500)\n"
    "  --standalone           accepted for command lines of torchrun; it changes nothing\n"
    "  --detach               return once all ranks have begun; see troupe attach\n"
    "  --dry-run              print which ranks would run on which host, and start nothing\n"
    "  --run-dir DIR          the folder of the run: logs and journal (default: a new folder below runs/)\n"
    "  --spares N             extra processes that take the place of ranks that die (default 0)\n"
    "  --min-ranks N          go on with as few as N ranks; with fewer, save and end with exit code 75 (default 1)\n"
    "  --max-restarts N       restarts of a rank within --restart-window (default 3; 0: never)\n"
    "  --restart-window S     seconds until a restart no longer counts (default 600)\n"
    "  --replace-timeout S    seconds to wait for a replacement; then go on with fewer ranks (default 5)\n"
    "  --suspect-after S      report a rank that was silent for S seconds (default 1)\n"
    "  --fence-after S        kill a rank that was silent for S seconds (default 3)\n"
    "  --hang-after S         kill a rank that does not leave an interrupted step within S seconds (default 60)\n"
    "  --park-after S         without a quorum: save and end after S seconds (default 60)\n"
    "  --last-call S          seconds from the start to wait for ranks beyond the minimum (default 5 with MIN:MAX, "
    "else 120)\n"
    "  --time-limit S         save and end within S seconds (default: none; with --slurm, the job's end time)\n"
    "  --no-recovery          end the job when the first rank dies\n"
    "  --keys DIR             with --nnodes: the folder that `troupe keys` made, copied to every node\n"
    "  --insecure-network     no keys: any process that reaches the job's port can control the job\n"
    "  --chaos SETTINGS       for tests: hurt ranks, the same way for the same seed, and report the goodput; for "
    "example seed=7,mtbf=30s,kinds=kill+stop+slow+net+disk+leave+nan\n"
    "\n"
    "exit code: 0 if the job is done; 128 + signal if a signal stopped it; else the code of the failure "
    "(docs/reference/exit_codes.md)\n"
    "example: troupe launch --nproc 4 --spares 1 ./train --lr 0.05\n";

constexpr const char* kConfigHelp =
    "usage: troupe config dump [--config FILE.toml] [--name value ...]\n"
    "       troupe config reference\n"
    "\n"
    "`dump` prints the merged settings as TOML, with the source of each. Its output is a file for --config. Later "
    "sources win: defaults, the file, the environment (TROUPE_LR=0.1), flags (--lr 0.1 or --optimizer.lr 0.1). "
    "`reference` prints the list of settings, which is docs/config.md. A program's own settings are not known here: "
    "run the program with --print-config.\n"
    "\n"
    "  --config FILE.toml     a file of settings\n"
    "  --name value           any setting of docs/config.md\n"
    "\n"
    "exit code: 0, or 2 if a setting is wrong\n"
    "example: troupe config dump --lr 0.05\n";

constexpr const char* kKeysHelp =
    "usage: troupe keys DIR [NODES]\n"
    "\n"
    "Makes the keys of a job in a new folder, to be copied to every node for `troupe launch --nnodes --keys`. With "
    "NODES, each node has a pair in DIR/node0, DIR/node1 and so on, and no node can act as another. With --hosts or "
    "srun the launcher makes the keys itself.\n"
    "\n"
    "  DIR     a new folder\n"
    "  NODES   the number of nodes (default: one pair for all nodes)\n"
    "\n"
    "exit code: 0, or 74 if the folder cannot be made\n"
    "example: troupe keys job-keys 2\n";

constexpr const char* kCompletionHelp =
    "usage: troupe completion bash|zsh|fish\n"
    "\n"
    "Prints a script that completes verbs, flags and files of this command. To load it: source <(troupe completion "
    "bash)\n"
    "\n"
    "exit code: 0\n"
    "example: troupe completion bash\n";

constexpr const char* kHelp =
    "usage: troupe VERB ...\n"
    "\n"
    "  launch --nproc N [--run-dir DIR] PROGRAM [ARGUMENTS]   start N ranks of PROGRAM on this machine\n"
    "  doctor [--hosts FILE|LIST]                             find what would keep a job from running, and say what to "
    "do\n"
    "  compile SOURCE.py:FUNCTION -o MODEL                    compile a Python model for training without Python\n"
    "  pack SOURCE.py:DATASET -o FOLDER                       write a Python data set into files for training without "
    "Python\n"
    "  train --model MODEL [--name value ...]                 train a compiled model; a program for launch\n"
    "  debug PROGRAM [ARGUMENTS]                              check in six steps why a program fails on several ranks\n"
    "  checkpoint ls|inspect|verify|convert PATH              list, show, check or convert checkpoints\n"
    "  report [RUN [BASELINE]]                                write a page about a run, or about two: times, failures, "
    "advice (RUN/report.html)\n"
    "  top [RUN | --port N]                                   follow a run in a terminal\n"
    "  ps                                                     list your jobs on this host\n"
    "  attach [RUN]                                           show the output of a detached job, or stop it\n"
    "  drain HOST [RUN]                                       let a host's ranks leave their job; the others go on\n"
    "  keys DIR [NODES]                                       make a job's keys (launch --nnodes --keys)\n"
    "  config dump [--config FILE] [--name value ...]         print the merged settings as TOML, with the source of "
    "each\n"
    "  config reference                                       print the list of settings, docs/config.md\n"
    "  new DIR                                                make a project that trains at once\n"
    "  completion bash|zsh|fish                               print a script that completes this command\n"
    "  --help, --version\n"
    "\n"
    "`troupe VERB --help` describes a verb. docs/reference/cli.md has all of them.\n"
    "example: troupe launch --nproc 2 ./train --lr 0.05\n";

std::string own_path() {
  char path[PATH_MAX];
  const auto n = ::readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0) throw troupe::Error(troupe::ErrorCode::unavailable, "/proc/self/exe", "cannot be read", "mount /proc");
  return std::string(path, static_cast<std::size_t>(n));
}

std::chrono::milliseconds seconds(const std::string& flag, const std::string& text, int most = 86'400) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != 0 || !(value >= 0 && value <= most))
    throw troupe::Error(
        troupe::ErrorCode::usage, flag,
        "'" + troupe::displayable(text) + "' is not a number of seconds from 0 to " + std::to_string(most));
  return std::chrono::milliseconds(static_cast<std::int64_t>(value * 1000));
}

// Target of a flag.
template <class Time>
troupe::FlagTarget in_seconds(Time& time, int most = 86'400) {
  return [&time, most](const std::string& flag, const std::string& text) { time = seconds(flag, text, most); };
}

// A flag that has no effect in such a job.
void refuse_idle_flags(std::span<const std::string> flags, const troupe::LauncherOptions& options, bool slurm) {
  const auto refuse = [&](const std::vector<std::string>& names, const std::string& cause, const std::string& remedy) {
    for (const auto& name : names) {
      const bool given =
          std::any_of(flags.begin(), flags.end(), [&](const auto& word) { return troupe::flag_in(word) == name; });
      if (given) throw troupe::Error(troupe::ErrorCode::usage, name, cause, remedy + ", or leave " + name + " out");
    }
  };
  if (options.nnodes == 0 && !slurm)  // whose command is the same in sbatch and srun
    refuse({"--node-rank", "--master-addr", "--master-port"}, "only a job of --nnodes has numbered nodes",
           "add --nnodes N");
  if (options.hosts.empty() && !slurm)
    refuse({"--address", "--ssh-config", "--remote-troupe"}, "only a job of --hosts starts ranks over ssh",
           "add --hosts LIST");
  if (!options.recovery.enabled)
    refuse({"--spares", "--min-ranks", "--max-restarts", "--restart-window", "--replace-timeout", "--fence-after",
            "--hang-after"},
           "without recovery no rank is replaced", "remove --no-recovery");
}

int launch(const std::vector<std::string>& words) {
  troupe::LauncherOptions options;
  auto& recovery = options.recovery;
  std::optional<int> nproc, min_ranks;
  std::optional<std::chrono::milliseconds> last_call;
  bool no_recovery = false, slurm = false, dry_run = false, help = false, standalone = false, detach = false;
  const auto read_hosts = [&](const std::string&, const std::string& value) {
    std::error_code unknown;  // a list may be longer than a file's name
    const bool file = std::filesystem::exists(value, unknown) || value.find('/') != std::string::npos;
    options.hosts = file ? troupe::read_host_file(value) : troupe::parse_host_flag(value);
  };
  const auto read_nodes = [&](const std::string& name, const std::string& value) {
    const auto colon = value.find(':');
    if (colon != std::string::npos) options.min_nnodes = troupe::whole_number(name, value.substr(0, colon), 1, 10'000);
    options.nnodes =
        troupe::whole_number(name, colon == std::string::npos ? value : value.substr(colon + 1), 1, 10'000);
    if (options.min_nnodes > options.nnodes)
      throw troupe::Error(troupe::ErrorCode::usage, name, "'" + value + "' has a minimum above its maximum",
                          "write MIN:MAX");
  };
  const auto first =
      troupe::read_flags(words,
                         {{"--nproc", troupe::number_between(nproc, 1, 1024)},
                          {"-n", troupe::number_between(nproc, 1, 1024)},
                          {"--nproc-per-node", troupe::number_between(nproc, 1, 1024)},
                          {"--run-dir", &options.run_dir},
                          {"--spares", troupe::number_between(options.spares, 0, 1024)},
                          {"--min-ranks", troupe::number_between(min_ranks, 1, 1'000'000)},
                          {"--max-restarts", troupe::number_between(recovery.max_restarts, 0, 1'000'000)},
                          {"--restart-window", in_seconds(recovery.restart_window)},
                          {"--replace-timeout", in_seconds(recovery.replace_timeout)},
                          {"--suspect-after", in_seconds(recovery.suspect_after)},
                          {"--fence-after", in_seconds(recovery.fence_after)},
                          {"--hang-after", in_seconds(recovery.hang_after)},
                          {"--park-after", in_seconds(recovery.park_after)},
                          {"--last-call", in_seconds(last_call)},
                          {"--time-limit", in_seconds(options.time_limit, 100 * 86'400)},
                          {"--hosts", read_hosts},
                          {"--address", &options.address},
                          {"--ssh-config",
                           [&](auto&, auto& value) {
                             options.ssh_arguments = {"-F", value};
                           }},
                          {"--remote-troupe", &options.remote_troupe},
                          {"--nnodes", read_nodes},
                          {"--node-rank", troupe::number_between(options.node_rank, 0, 9'999)},
                          {"--master-addr", &options.master_addr},
                          {"--master-port", troupe::number_between(options.master_port, 1, 65535)},
                          {"--chaos", [&](auto&, auto& value) { troupe::parse_chaos(value), options.chaos = value; }},
                          {"--keys", &options.keys},
                          {"--standalone", &standalone},  // torchrun's
                          {"--insecure-network", &options.insecure},
                          {"--no-recovery", &no_recovery},
                          {"--slurm", &slurm},
                          {"--dry-run", &dry_run},
                          {"--detach", &detach},
                          {"--help", &help}},
                         "troupe launch");
  if (help) return troupe::print_help(kLaunchHelp), 0;
  recovery.enabled = !no_recovery;
  recovery.min_ranks = min_ranks.value_or(recovery.min_ranks);
  options.nproc = nproc.value_or(options.nproc);
  if (!options.chaos.empty() && !recovery.enabled)
    throw troupe::Error(troupe::ErrorCode::usage, "--chaos", "without recovery the first fault ends the job",
                        "leave --no-recovery out");
  if (slurm) {
    const auto allocation = troupe::read_slurm();
    if (!allocation)
      throw troupe::Error(troupe::ErrorCode::usage, "--slurm", "this is not a Slurm job",
                          "use it inside sbatch, salloc or srun");
    if (!options.hosts.empty() || options.nnodes > 0)
      throw troupe::Error(troupe::ErrorCode::usage, "--slurm", "it cannot be combined with --hosts or --nnodes",
                          "leave them out: Slurm provides the hosts");
    if (troupe::is_surplus_task(*allocation)) return troupe::exit_code(troupe::ErrorCode::usage);
    const auto note = troupe::follow_slurm(*allocation, nproc, options, std::chrono::system_clock::now());
    if (!note.empty()) std::fprintf(stderr, "troupe: %s\n", note.c_str());
  }
  if (!options.hosts.empty() && options.nnodes > 0)
    throw troupe::Error(troupe::ErrorCode::usage, "--hosts", "it cannot be combined with --nnodes",
                        "leave --nnodes out: one command starts all hosts of the list");
  if (!options.hosts.empty() && nproc && !slurm)
    throw troupe::Error(troupe::ErrorCode::usage, "--nproc", "the host list says how many ranks each host has",
                        "leave it out, or write the number behind the host: --hosts localhost:2");
  if (!options.keys.empty() && options.nnodes == 0)
    throw troupe::Error(troupe::ErrorCode::usage, "--keys", "only a job of --nnodes takes keys",
                        "leave it out: the launcher makes them");
  refuse_idle_flags(std::span(words).first(first), options, slurm);
  if (detach && options.nnodes > 1)
    throw troupe::Error(troupe::ErrorCode::usage, "--detach", "each node of --nnodes has its own command",
                        "leave it out, and let a service or Slurm run them; with --hosts one command starts all nodes");
  if (options.nnodes > 0 && options.node_rank >= options.nnodes)
    throw troupe::Error(troupe::ErrorCode::usage, "--node-rank",
                        std::to_string(options.node_rank) + " is not below --nnodes " + std::to_string(options.nnodes));
  const int ranks = !options.hosts.empty() ? static_cast<int>(troupe::assign_ranks(options.hosts).size())
                                           : options.nproc * std::max(1, options.nnodes);
  if (options.min_nnodes > 0 && !min_ranks) recovery.min_ranks = options.min_nnodes * options.nproc;
  if (min_ranks || options.min_nnodes > 0) recovery.min_start = recovery.min_ranks;
  if (options.min_nnodes > 0 && !recovery.enabled)
    throw troupe::Error(troupe::ErrorCode::usage, "--nnodes", "MIN:MAX needs recovery", "leave --no-recovery out");
  if (options.min_nnodes > 0) recovery.last_call = std::chrono::seconds(5);
  if (last_call) recovery.last_call = *last_call;
  if (recovery.min_ranks > ranks) {
    throw troupe::Error(
        troupe::ErrorCode::usage, "--min-ranks",
        std::to_string(recovery.min_ranks) + " is more than the job has (" + std::to_string(ranks) + ")");
  }
  if (recovery.suspect_after > recovery.fence_after)
    throw troupe::Error(troupe::ErrorCode::usage, "--suspect-after", "it is longer than --fence-after",
                        "lower it, or raise --fence-after");
  options.command.assign(words.begin() + static_cast<std::ptrdiff_t>(first), words.end());
  if (options.command.empty())
    throw troupe::Error(troupe::ErrorCode::usage, "launch", "no program was named",
                        "for example troupe launch --nproc 2 ./train");
  if (dry_run) return std::fputs(troupe::launch_plan(options).c_str(), stdout), 0;
  options.troupe_program = own_path();
  return detach ? troupe::launch_detached(options) : troupe::launch(options);
}

int coordinate(const std::vector<std::string>& words) {
  return troupe::run_coordinator(
      troupe::options_of<troupe::CoordinatorProcessOptions>(words.empty() ? "" : words[0], "coordinator"));
}

int node(const std::vector<std::string>& words) {
  auto ranks = troupe::options_of<troupe::RankProcessOptions>(words.size() < 2 ? "" : words[0], "node");
  ranks.command.assign(words.begin() + 1, words.end());
  return troupe::run_node(ranks);
}

bool asks_for_help(const std::vector<std::string>& words) {
  return std::ranges::find(words, "--help") != words.end() || std::ranges::find(words, "-h") != words.end();
}

int configuration(const std::vector<std::string>& words) {
  if (asks_for_help(words)) return troupe::print_help(kConfigHelp), 0;
  if (words == std::vector<std::string>{"reference"}) return std::cout << troupe::config_reference(), 0;
  if (words.empty() || words[0] != "dump") {
    const auto near = words.empty() ? std::string() : troupe::nearest_name(words[0], {"dump", "reference"});
    throw troupe::Error(troupe::ErrorCode::usage, "troupe config",
                        words.empty() ? "no verb was named" : "there is no '" + troupe::displayable(words[0]) + "'",
                        near.empty() ? "see troupe config --help" : "did you mean " + near + "?");
  }
  troupe::Config config;
  std::vector<const char*> flags;
  flags.reserve(words.size());
  for (const auto& word : words) flags.push_back(word.c_str());  // the first is the program's name to it
  if (troupe::parse_config(config, static_cast<int>(flags.size()), flags.data()) == troupe::ConfigAction::help)
    return troupe::print_help(kConfigHelp), 0;
  std::fputs(troupe::config_to_toml(config).c_str(), stdout);
  return 0;
}

int completion(const std::vector<std::string>& words) {
  if (asks_for_help(words)) return troupe::print_help(kCompletionHelp), 0;
  if (words.size() != 1)
    throw troupe::Error(troupe::ErrorCode::usage, "troupe completion", "no shell was named", "name bash, zsh or fish");
  std::fputs(troupe::completion_script(words[0]).c_str(), stdout);
  return 0;
}

int make_keys(const std::vector<std::string>& words) {
  if (asks_for_help(words)) return troupe::print_help(kKeysHelp), 0;
  if (words.empty() || words.size() > 2 || words[0].starts_with("-"))
    throw troupe::Error(troupe::ErrorCode::usage, "keys", "it takes one new folder and optionally the number of nodes",
                        "troupe keys DIR [NODES]");
  if (words.size() == 1) {
    troupe::KeyFolder::write(words[0], troupe::KeyMaker().keys_for("node"));
    std::printf("%s: copy it, with its modes, to every node (scp -pr); any process that has it can control the job\n",
                words[0].c_str());
    return 0;
  }
  troupe::write_keys_of_nodes(words[0], troupe::whole_number("keys", words[1], 1, 65'536));
  std::printf(
      "%s: copy node0, node1, ..., with their modes, each to its node (scp -pr), for --keys; a process that has one "
      "can act as that node\n",
      words[0].c_str());
  return 0;
}

// Becomes another program: a path, or a name that is searched for in PATH. `remedy`: if it is not there.
int execute(std::vector<std::string> command, const std::string& remedy) {
  std::vector<char*> arguments(command.size() + 1, nullptr);
  std::transform(command.begin(), command.end(), arguments.begin(), [](std::string& word) { return word.data(); });
  ::execvp(command[0].c_str(), arguments.data());
  throw troupe::Error(troupe::ErrorCode::unavailable, command[0], std::strerror(errno), remedy);
}

// Becomes the program of that name, which lies beside this one.
int become(const std::string& name, const std::vector<std::string>& words) {
  std::vector<std::string> command{(std::filesystem::path(own_path()).parent_path() / name).string()};
  command.insert(command.end(), words.begin(), words.end());
  return execute(std::move(command), "build or install Troupe again: the program comes with this command");
}

// Becomes Python with a module of Troupe's package: beside an installed command, or in this command's own source tree.
int run_python(const std::string& module, const std::vector<std::string>& words) {
  const auto here = std::filesystem::path(own_path()).parent_path();
  std::string folder;
  std::error_code unknown;
  for (const auto& candidate :
       {here / "../share/troupe/python", here / "../..", std::filesystem::path(TROUPE_PYTHON_SOURCE)}) {
    if (folder.empty() && std::filesystem::exists(candidate / "troupe/compile.py", unknown))
      folder = candidate.lexically_normal();
  }
  const char* chosen = std::getenv("TROUPE_PYTHON");
  const std::string python = chosen != nullptr && *chosen != 0 ? chosen : "python3";
  if (folder.empty())
    throw troupe::Error(troupe::ErrorCode::unavailable, "the Python package troupe",
                        "it is not installed with this command");
  const char* others = std::getenv("PYTHONPATH");
  ::setenv("PYTHONPATH", (folder + (others != nullptr && *others != 0 ? std::string(":") + others : "")).c_str(), 1);
  ::setenv("TROUPE_COMMAND", own_path().c_str(), 1);
  std::vector<std::string> command{python, "-m", module};
  command.insert(command.end(), words.begin(), words.end());
  return execute(std::move(command), "install Python 3 with torch, or say where it is: TROUPE_PYTHON=/path/to/python3");
}

int run(const std::vector<std::string>& words) {
  if (words.empty()) return std::fputs(kHelp, stderr), 2;
  std::vector<std::string> rest(words.begin() + 1, words.end());
  const auto& verb = words[0];
  static const std::set<std::string> starts_programs{"launch", "debug", "node", "compile", "pack", "train"};
  if (!starts_programs.contains(verb) && asks_for_help(rest)) rest = {"--help"};  // whatever stands beside it
  if (verb == "--help" || verb == "-h" || verb == "help") return troupe::print_help(kHelp), 0;
  if (verb == "--version") return std::puts("troupe " TROUPE_VERSION), 0;
  if (verb == "launch") return launch(rest);
  if (verb == "coordinator") return coordinate(rest);
  if (verb == "node") return node(rest);
  if (verb == "doctor")
    return troupe::doctor_command(rest, {own_path(), TROUPE_VERSION, {troupe::ranks_check(own_path())}});
  if (verb == "debug") return troupe::debug_command(rest, own_path());
  if (verb == "keys") return make_keys(rest);
  if (verb == "checkpoint") return become("troupe-checkpoint", rest);
  if (verb == "compile") return run_python("troupe.compile", rest);
  if (verb == "pack") return run_python("troupe.pack", rest);
  if (verb == "train") return become("troupe-train", rest);
  if (verb == "report") return troupe::report_command(rest);
  if (verb == "top") return troupe::top_command(rest);
  if (verb == "ps") return troupe::ps_command(rest);
  if (verb == "attach") return troupe::attach_command(rest);
  if (verb == "drain") return troupe::drain_command(rest);
  if (verb == "config") return configuration(rest);
  if (verb == "new") return troupe::new_project_command(rest, own_path());
  if (verb == "completion") return completion(rest);
  const auto near = troupe::nearest_name(
      verb, {"launch", "compile", "pack", "train", "doctor", "debug", "keys", "coordinator", "checkpoint", "config",
             "report", "top", "ps", "attach", "drain", "new", "completion", "help"});
  throw troupe::Error(troupe::ErrorCode::usage, "command line", "there is no verb '" + troupe::displayable(verb) + "'",
                      near.empty() ? "see troupe --help" : "did you mean " + near + "?");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const troupe::Error& error) {
    std::fprintf(stderr, "troupe: %s\n", error.what());
    return troupe::exit_code(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "troupe: %s\n", error.what());
    return troupe::exit_code(troupe::ErrorCode::internal);
  }
}
