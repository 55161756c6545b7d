#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace troupe::testing {

/// A rank, by its number when the job begins.
struct Rank {
  int number = 0;  ///< as the job begins
};
/// A host of the cluster.
struct Host {
  int number = 0;  ///< from 0, where the coordinator is
};
/// The moment of a fault: at a place of fault_point, which lists them.
struct At {
  std::string place;
  std::int64_t step = 0;  ///< from 0
  int life = 0;           ///< 0: the rank's first one; 1: of its replacement
};
/// A factor, for Cluster::slow.
struct Times {
  double factor = 1;
};

/// Chooses messages of one rank: between it and the coordinator, and between its strategy and the strategy's actors
/// (OwnActor).
struct Message {
  std::optional<Rank> from = {};  ///< its sender; or
  std::optional<Rank> to = {};    ///< its receiver: one of the two
  std::string type = {};          ///< "Heartbeat", without its namespaces; empty: any
  int nth = 0;                    ///< of those chosen by the other members, from 0
  std::optional<At> after = {};   ///< counted from there on: a place to which the rank comes
};

/// One message that was sent.
struct SentMessage {
  std::string from, to;            ///< "rank 1", "host 0" (its agent), "coordinator", "rank 1's gossip" (an OwnActor)
  std::string type;                ///< of its first value, without its namespaces
  std::chrono::nanoseconds at{0};  ///< of the cluster's clock, since the job began
  bool dropped = false;
};

/// One fault of a cluster. Which members count depends on the kind.
struct ClusterFault {
  enum class Kind : std::uint8_t { kill, stop, slow, leave, cut, drop, delay, reorder };
  Kind kind = Kind::kill;
  int rank = 0;  ///< of kill, stop, slow, leave
  At at;         ///< of kill, stop, leave, cut
  std::chrono::milliseconds lasts{0};
  double factor = 1;
  Host host = {}, other = {};   ///< of cut
  Message message = {};         ///< of drop, delay, reorder
  std::string to_code() const;  ///< `cluster.kill(Rank{1}, At{"vote", 7});`
  /// Whether the fault is one of a message.
  bool hits_message() const noexcept { return kind >= Kind::drop; }
};

/// Throws Error(usage), which names the part that this cluster does not have.
void check_fault(const ClusterFault& fault, int hosts, int ranks, bool parallel);

}  // namespace troupe::testing
