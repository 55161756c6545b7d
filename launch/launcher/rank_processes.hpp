#pragma once
#include <poll.h>

#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/messages/membership.hpp"
#include "launch/launcher/first_words.hpp"
#include "launch/network/job_keys.hpp"
#include "launch/process/child_process.hpp"
#include "launch/process/output_lines.hpp"
#include "launch/process/run_of_job.hpp"

namespace troupe {

/// The options of every rank process of a job on this host.
struct RankProcessOptions {
  RunOfJob run;
  std::string program;               ///< path of the executable
  std::vector<std::string> command;  ///< argv
  std::string host = "localhost";
  std::string address = "127.0.0.1";  ///< for this host's ranks to listen on
  std::string coordinator_host = "127.0.0.1";
  std::string master_addr = "127.0.0.1";
  int coordinator_port = 0;
  int world_size = 1;
  int node_rank = 0, nodes = 1;
  std::vector<int> slots;                     ///< this host's, in the order of local ranks
  std::vector<int> spares;                    ///< slots beyond the world size
  bool recovery = true;                       ///< the job outlives the loss of a rank
  int starts_over = 0;                        ///< number of times that the job has begun anew from its last checkpoint
  std::string keys;                           ///< a KeyFolder; empty: no TLS
  std::shared_ptr<const KeyFolder> own_keys;  ///< that one, if the launcher has made it
  bool keys_on_stdin = false;                 ///< an agent's: the keys come first on standard input
  bool under_launcher = false;                ///< an agent's: the launcher says how the job ended
  bool terminal = false;                      ///< standard output is one: progress bars are wanted
  int bar_columns =
      0;  ///< of a launcher's terminal elsewhere, which overwrites a line that ends with a carriage return; 0: none
};

/// The rank processes of one host: starts and kills them, marks their lines with the rank, keeps their logs. Main
/// thread.
class RankProcesses {
 public:
  using Exited = std::function<void(const ProcessId&, int wait_status)>;
  /// `still_saving`: a rank has said so (kStillSaving).
  RankProcesses(RankProcessOptions options, Exited exited, std::function<void()> still_saving);

  /// One life of a slot. Throws Error(io, unavailable).
  void start(const ProcessId& process, int restarts);
  void start_all();
  void kill(const ProcessId& process);
  void signal_all(int number);
  bool was_killed(int slot) const { return slots_.at(slot).killed; }  ///< by us

  void add_fds(std::vector<pollfd>& fds) const;
  /// Reads the processes' output, notices those that ended.
  void step();
  std::size_t alive() const;
  std::size_t open_pipes() const;
  std::vector<ProcessId> running() const;
  void clear_bar();

  struct Ended {
    int slot = -1;
    int wait_status = 0;
    bool killed_by_us = false;
    std::string log_path, last_line;
  };
  const std::vector<Ended>& failures() const noexcept {
    return failures_;
  }  ///< not 0 and not replaced, in the order in which they came
  const std::string& last_shown() const noexcept { return last_shown_; }  ///< the last line on the screen, of any rank

 private:
  struct FileClose {
    void operator()(FILE* file) const { std::fclose(file); }
  };
  struct Slot {
    int number = 0, local_rank = 0;
    std::string label;
    ProcessId process;
    std::unique_ptr<ChildProcess> child;
    bool killed = false;  // by us
    std::unique_ptr<FILE, FileClose> log;
    std::string log_path;
    OutputLines out, err;
    std::string last_line;
  };
  void drain(Slot& slot);
  void drain(Slot& slot, int fd, OutputLines& lines, int target);
  void show(Slot& slot, std::string_view text, bool overwrite, int target);

  RankProcessOptions options_;
  Exited exited_;
  std::function<void()> still_saving_;
  std::map<int, Slot> slots_;
  std::vector<Ended> failures_;
  FirstWords first_words_;
  std::string last_shown_;
  bool bar_shown_ = false;
};

}  // namespace troupe
