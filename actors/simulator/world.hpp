#pragma once
#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/simulator/draw.hpp"

namespace troupe::simulator {

using Time = caf::actor_clock::time_point;
using std::chrono::milliseconds;

class Connection;

/// `Heartbeat`: the type of a message's first value.
std::string name_of(const caf::message& message);

/// Actors of the one actor system that live, stand still and die together, as those of a process do.
struct Process {
  int id = 0;
  std::string name;  ///< `coordinator 2`, `rank 3.1`: with the number of its life
  int host = 0;
  int life = 0;  ///< of a coordinator: the number of coordinators before it
  bool alive = true;
  bool frozen = false;                ///< SIGSTOP
  std::chrono::nanoseconds spent{0};  ///< by its actors, of this machine's time; counted only if `counts_time`
  std::vector<caf::strong_actor_ptr> actors;
  std::map<int, Connection*> connections;  ///< by id: nothing depends on addresses in memory
};

/// A TCP connection between two processes: messages arrive in order, late, or not at all once it is closed. Side 0 is
/// the one that connected.
class Connection {
 public:
  struct Side {
    Process* process = nullptr;
    std::function<void()> closed;                            ///< the other side is gone
    Time last{};                                             ///< the arrival of the last message
    std::vector<std::function<void()>> stalled;              ///< held up by a cut network
    std::map<caf::actor_id, caf::strong_actor_ptr> proxies;  ///< at this side, of the other's actors
  };
  Side sides[2];
  int id = 0;
  std::string name;
  Draw draw;
  bool open = true;

  Connection(int id, Process& from, Process& to, std::string name, std::uint64_t seed);
  int side_of(const Process& process) const noexcept { return sides[0].process == &process ? 0 : 1; }
};

/// For a function that is spawned and takes none: CAF 0.17.6 would bind a reference to a null pointer.
struct NoArgument {};

/// Processes, their network and their time, in one thread. The seed decides everything: the time that a message takes,
/// the next of the actors that could run, the step of the clock. CAF's own clock is the time, its scheduler the
/// processor.
class World {
 public:
  explicit World(std::uint64_t seed);
  ~World();
  /// Ends all processes, before the objects that their actors refer to.
  void end();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Time now() const noexcept;
  milliseconds time() const noexcept;  ///< since the beginning

  /// Calls `what` after `delay`. The death of a process does not undo it.
  void after(std::chrono::nanoseconds delay, std::function<void()> what);

  Process& start(const std::string& name, int host);
  /// All its actors are gone at once and send nothing more; connected processes learn of it soon.
  void kill(Process& process);
  void freeze(Process& process) noexcept { process.frozen = true; }
  void thaw(Process& process) noexcept { process.frozen = false; }
  /// `function` takes the actor and `arguments`; a lone NoArgument if there are none.
  template <class Function, class... Arguments>
  auto spawn(Process& process, Function&& function, Arguments&&... arguments) {
    auto actor = system_.spawn(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
    place(process, caf::actor_cast<caf::strong_actor_ptr>(actor));
    return actor;
  }
  /// The process that an actor is of; null for a proxy, and for CAF's own.
  Process* process_of(caf::actor_id id) const;

  /// Null if the hosts can't reach each other, or the other process is gone.
  Connection* connect(Process& from, Process& to, const std::string& name);
  /// The address by which `at` reaches an actor of the other side.
  caf::strong_actor_ptr proxy(Connection& connection, const Process& at, const caf::strong_actor_ptr& target);
  void send(Connection& connection, int from, std::function<void()> arrives);
  /// Reset: messages under way are lost.
  void cut(Connection& connection);
  /// One side closes it: the other learns of it after the earlier messages.
  void close(Connection& connection, int from);
  /// Hosts of the two sets can't reach each other from now on; messages meanwhile arrive after `mend`.
  void part(std::set<int> hosts) { parted_ = std::move(hosts); }
  void mend();
  bool parted(int a, int b) const { return parted_.contains(a) != parted_.contains(b); }
  /// Every message from now on takes `extra` longer.
  void slow_network(milliseconds extra) noexcept { extra_ = extra; }

  /// `n` of the last messages that `may_repeat` allows arrive once more, within this time.
  void replay(int n, milliseconds within);

  /// One actor runs, or time goes on to the next event. False: nothing is left to do.
  bool step();

  /// A line of the log, after the time. All lines together record the run: they are equal for equal seeds.
  void log(const std::string& line);
  std::uint64_t log_hash() const noexcept { return log_hash_; }
  std::vector<std::string> lines;  ///< kept only if `keep_lines`
  bool keep_lines = false;
  std::size_t messages = 0;  ///< between processes
  std::size_t jobs_run = 0;
  bool counts_time = false;
  /// Sees each message between processes as it arrives: from, to, content. May be empty.
  std::function<void(const Process&, const Process&, const caf::message&)> on_message;
  std::function<bool(const caf::message&)> may_repeat;

 private:
  friend class Proxy;
  void place(Process& process, caf::strong_actor_ptr actor);
  void post(Connection& connection, int from, const caf::strong_actor_ptr& target, caf::strong_actor_ptr sender,
            caf::message_id mid, caf::message content);
  void deliver(Connection& connection, int from, const caf::strong_actor_ptr& target,
               const caf::strong_actor_ptr& sender, caf::message_id mid, caf::message content);
  void arrive(Connection& connection, int from, std::function<void()> what);
  void forget(Connection& connection);
  void forget(Connection& connection, Connection::Side& side);
  bool run_job();

  std::uint64_t seed_;
  Draw choice_;
  struct Config : caf::actor_system_config {
    Config();
  } config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator& scheduler_;
  Time begun_;
  std::multimap<Time, std::function<void()>> events_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::unordered_map<caf::actor_id, Process*> places_;
  std::set<int> parted_;
  milliseconds extra_{0};
  struct Delivered {
    Connection* connection = nullptr;
    int from = 0;
    caf::strong_actor_ptr target, sender;
    caf::message content;
  };
  std::deque<Delivered> delivered_;  // that may be repeated: the last few
  std::map<std::string, int> names_;
  std::uint64_t log_hash_ = 1469598103934665603ULL;
};

}  // namespace troupe::simulator
