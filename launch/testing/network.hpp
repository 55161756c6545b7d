#pragma once
#include <caf/all.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "launch/testing/cluster_fault.hpp"
#include "launch/testing/message_faults.hpp"

namespace troupe::testing {

/// One end of a connection.
struct NetworkEnd {
  std::string name;  ///< as in SentMessage
  int host = 0;
  std::optional<int> rank;  ///< nothing: the coordinator, an agent, a strategy's own actor
};

/// The traffic between the hosts of a cluster, and between its actors: records messages, drops, delays and swaps those
/// that faults choose, and holds up those that a cut parts. A connection is as in TCP: in order, and messages held up
/// by a cut arrive when it ends. Any thread.
class Network : public std::enable_shared_from_this<Network> {
 public:
  using Clock = std::chrono::steady_clock;
  using Came = std::function<void(std::size_t fault)>;

  /// `came`: called as a fault comes, with its number in `faults`.
  Network(caf::actor_system& system, std::vector<ClusterFault> faults, Came came);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// A new connection: the address to which an actor at `here` sends instead of `actor`, which is at `there`.
  caf::strong_actor_ptr connect(NetworkEnd here, NetworkEnd there, const caf::strong_actor_ptr& actor);
  /// The place of a cut, or of a message's `after`, is there.
  void begin(std::size_t fault);
  /// Waits while any two of these hosts are parted, until the deadline: false. True at once if `given_up`.
  bool await_way(const std::set<int>& hosts, Clock::time_point deadline, const std::atomic<bool>& given_up);
  bool is_cut(int host, int other);
  /// The conditions of await_way have changed.
  void wake();
  /// Nothing arrives any more. Returns the sent messages. Before the actor system ends.
  std::vector<SentMessage> end();

 private:
  class Proxy;
  struct Held {
    Clock::time_point due;
    std::function<void()> arrives;
  };
  // One direction of a connection.
  struct Way {
    NetworkEnd from, to;
    std::deque<Held> held;                                   // behind one that is not due the others wait, too
    std::optional<Held> swapped;                             // arrives behind the next
    std::size_t swap = 0;                                    // by this fault
    bool delivers = false;                                   // a thread does, outside of the lock
    std::map<caf::actor_id, caf::strong_actor_ptr> proxies;  // the targets of messages of this way
  };
  struct Connection {
    Way ways[2];  // the second: back
  };
  struct Cut {
    int host, other;
    Clock::time_point until;
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  caf::strong_actor_ptr proxy(const ConnectionPtr& connection, int way, const caf::strong_actor_ptr& target);
  void post(const ConnectionPtr& connection, int way, const std::string& type, std::function<void()> arrives);
  void close(const ConnectionPtr& connection, int way, caf::actor_id actor, const caf::error& reason);
  void hold(Way& way, std::function<void()> arrives, Clock::time_point due);
  void flush(Way& way, std::unique_lock<std::mutex>& lock);
  Clock::time_point way_is_free(const Way& way) const;
  Clock::time_point free_from(int host, int other) const;
  void deliver_late();

  caf::actor_system& system_;
  const std::vector<ClusterFault> faults_;
  const Came came_;
  const Clock::time_point began_ = Clock::now();
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  MessageFaults message_faults_;
  std::vector<ConnectionPtr> connections_;
  std::vector<Cut> cuts_;
  std::vector<SentMessage> sent_;
  bool over_ = false;
  std::thread late_;  // delivers held-up messages
};

/// `Heartbeat`: the type of a message's first value.
std::string type_of(const caf::message& content);

}  // namespace troupe::testing
