// Messages between processes, from arbitrary bytes, and what the coordinator does with a series of those that can be
// decoded.
#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include <cmath>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "actors/coordinator/coordinator.hpp"
#include "launch/network/actor_system.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

using FromPeers = MessagesToCoordinator;
using FromCoordinator =
    std::tuple<ErrorReport, JoinAccepted, SaveAttempt, CheckpointSaved, PublishCheckpoint, SaveEnded, ReportCollectives,
               AbortJob, ProcessId, Member, Membership, CoordinatorTick, CoordinatorBeat, InterruptRanks, FenceRank,
               InjectFault, StartRank, KillRank, JobOver, LeaveLoop>;

constexpr int kPeers = 4, kWorld = 3;

struct World {
  struct Config : ActorSystemConfig {
    Config() : ActorSystemConfig(false) { set("scheduler.policy", caf::atom("testing")); }
  } config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  std::vector<caf::strong_actor_ptr> peers;
  World() {
    for (int i = 0; i < kPeers; ++i) peers.push_back(new_peer());
  }
  caf::strong_actor_ptr new_peer() {
    // An argument each time an actor is made: CAF 0.17 dereferences a null pointer where there is none.
    const auto drop_all = [](caf::event_based_actor* self, int) -> caf::behavior {
      self->set_default_handler(caf::drop);
      return {[](caf::unit_t) {}};
    };
    return caf::actor_cast<caf::strong_actor_ptr>(system.spawn(drop_all, 0));
  }
};

World& world() {
  static auto* const made = new World;  // for as long as the process
  return *made;
}

template <class T>
std::vector<char> encode(const T& message) {
  std::vector<char> bytes;
  caf::binary_serializer sink(nullptr, bytes);
  if (sink(const_cast<T&>(message))) std::abort();
  return bytes;
}

template <class T>
bool decode(std::string_view bytes, T& message) {
  caf::binary_deserializer source(nullptr, bytes.data(), bytes.size());
  return !source(message);
}

// CAF 0.17 never comes to an end of writing a number that is infinite or none, so nobody may be made to: no rank counts
// one, and the coordinator tells none on.
template <class T>
bool can_be_said(const T& message) {
  if constexpr (std::is_same_v<T, CollectiveState>) return std::isfinite(message.waited_ms);
  if constexpr (std::is_same_v<T, CheckpointSaved>) return std::isfinite(message.seconds);
  if constexpr (std::is_same_v<T, SaveEnded>) return std::isfinite(message.saved.seconds);
  if constexpr (std::is_same_v<T, CheckpointPublished>) return std::isfinite(message.ended.saved.seconds);
  return true;
}

// What was understood can be said again, and means the same.
template <class T>
void round_trip(std::string_view bytes) {
  T message, again;
  if (!decode(bytes, message) || !can_be_said(message)) return;
  const auto said = encode(message);
  if (!decode({said.data(), said.size()}, again) || encode(again) != said) std::abort();
  if constexpr (std::is_same_v<T, ErrorReport>) {
    (void)message.to_string();
    (void)exit_code(message.code);
  }
  if constexpr (std::is_same_v<T, InjectFault>) (void)name_of(message.kind);
}

template <class Messages, std::size_t... I>
void round_trip_of(std::size_t which, std::string_view bytes, std::index_sequence<I...>) {
  ((which == I ? round_trip<std::tuple_element_t<I, Messages>>(bytes) : void()), ...);
}

class Bytes {
 public:
  explicit Bytes(std::string_view text) : text_(text) {}
  bool empty() const { return text_.empty(); }
  std::uint8_t byte() {
    const auto value = text_.empty() ? '\0' : text_.front();
    text_.remove_prefix(text_.empty() ? 0 : 1);
    return static_cast<std::uint8_t>(value);
  }
  std::string_view take(std::size_t n) {
    const auto taken = text_.substr(0, n);
    text_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view text_;
};

/// The real coordinator on a clock and a scheduler of the test's.
struct Coordinator {
  explicit Coordinator(bool recovers) {
    CoordinatorOptions options;
    options.job_id = "job";
    options.world_size = kWorld;
    options.recovery.enabled = recovers;
    options.record = [this](const Membership& next) {
      std::set<std::pair<std::int32_t, std::uint64_t>> processes;
      for (const auto& member : next.members) processes.emplace(member.process.slot, member.process.incarnation);
      const bool sound = next.generation > generation && !next.members.empty() && next.world_size() <= kWorld &&
                         processes.size() == next.members.size() && next.resume_step >= 0;
      if (!sound) {
        std::fprintf(stderr, "not a membership: generation %llu of %d after %llu, step %lld\n",
                     static_cast<unsigned long long>(next.generation), next.world_size(),
                     static_cast<unsigned long long>(generation), static_cast<long long>(next.resume_step));
        std::abort();
      }
      generation = next.generation;
    };
    options.log = [](const std::string& line) {
      if (line.size() > 1 << 20) std::abort();
    };
    address = world().system.spawn(coordinator, options);
    world().scheduler.run();
  }
  ~Coordinator() {
    caf::anon_send_exit(address, caf::exit_reason::kill);
    world().scheduler.run();
  }
  template <class T>
  void tell(const T& message, const caf::strong_actor_ptr& from) {
    caf::actor_cast<caf::strong_actor_ptr>(address)->enqueue(from, caf::make_message_id(), caf::make_message(message),
                                                             nullptr);
    world().scheduler.run();
  }
  template <std::size_t... I>
  void tell_decoded(std::size_t which, std::string_view bytes, const caf::strong_actor_ptr& from,
                    std::index_sequence<I...>) {
    const auto one = [&](auto message) {
      if (decode(bytes, message)) tell(message, from);
    };
    ((which == I ? one(std::tuple_element_t<I, FromPeers>{}) : void()), ...);
  }

  CoordinatorActor address;
  std::uint64_t generation = 0;
};

constexpr auto kFromPeers = std::tuple_size_v<FromPeers>;

// The first byte: whether the ranks have joined, and whether the job recovers. Then per message: its kind, from whom,
// its length, itself.
void converse(Bytes bytes) {
  const auto mode = bytes.byte();
  Coordinator coordinator(mode & 1);
  if (mode & 2) {
    for (int rank = 0; rank < kWorld; ++rank)
      coordinator.tell(
          JoinJob{"job", {rank, static_cast<std::uint64_t>(rank + 1)}, kWorld, "host", "build", "config", false, 0},
          world().peers[static_cast<std::size_t>(rank)]);
  }
  for (int n = 0; n < 64 && !bytes.empty(); ++n) {
    const auto what = bytes.byte(), who = bytes.byte();
    auto& peer = world().peers[who % kPeers];
    if (what % (kFromPeers + 3) < kFromPeers) {
      const std::size_t low = bytes.byte(), high = bytes.byte();
      coordinator.tell_decoded(what % (kFromPeers + 3), bytes.take(low + 256 * high), who & 0x80 ? nullptr : peer,
                               std::make_index_sequence<kFromPeers>());
    } else if (what % (kFromPeers + 3) == kFromPeers) {
      caf::anon_send_exit(peer, caf::exit_reason::kill);
      world().scheduler.run();
      peer = world().new_peer();
    } else {
      for (int ticks = 0; ticks < 1 + who % 64; ++ticks) {
        world().scheduler.advance_time(100ms);
        world().scheduler.run();
      }
    }
  }
}

}  // namespace

// CAF keeps what it allocates until the process ends, and each look for leaks takes a tenth of a second.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 2) return 0;
  const auto text = fuzz::text_of(data + 1, bytes - 1);
  return fuzz::try_input([&] {
    switch (data[0] % 4) {
      case 0:
        return round_trip_of<FromPeers>(data[1] % kFromPeers, text.substr(1), std::make_index_sequence<kFromPeers>());
      case 1: {
        constexpr auto kinds = std::tuple_size_v<FromCoordinator>;
        return round_trip_of<FromCoordinator>(data[1] % kinds, text.substr(1), std::make_index_sequence<kinds>());
      }
      case 2: {  // as it stands in a frame: the names of its types first
        caf::message message;
        caf::binary_deserializer source(world().system, text.data(), text.size());
        if (!source(message)) (void)caf::to_string(message);
        return;
      }
      default: return converse(Bytes(text));
    }
  });
}
