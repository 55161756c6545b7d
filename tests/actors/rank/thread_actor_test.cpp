#include "actors/rank/thread_actor.hpp"

#include <caf/all.hpp>

#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct ThreadActorSystem {
  caf::actor_system_config config;
  caf::actor_system system{config};
};

}  // namespace

TEST_CASE(
    "[T06] a thread's mailbox loses no message, whether the thread sleeps, wakes or gives up waiting as it comes") {
  constexpr int kSenders = 4, kMessages = 5'000;
  ThreadActorSystem rank;
  ThreadActor self(rank.system);
  std::vector<std::thread> senders;
  for (int sender = 0; sender < kSenders; ++sender) {
    senders.emplace_back([sender, address = self.handle()] {
      for (int i = 0; i < kMessages; ++i) {
        caf::anon_send(address, sender, i);
        if (i % 16 == 0) std::this_thread::sleep_for(50us);
      }
    });
  }
  std::vector<int> next(kSenders, 0);
  bool in_order = true;
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  for (int received = 0; received < kSenders * kMessages && std::chrono::steady_clock::now() < deadline;) {
    self->receive(
        [&](int sender, int i) {
          ++received;
          in_order = in_order && next[static_cast<std::size_t>(sender)]++ == i;
        },
        caf::after(20us) >> [] {});
  }
  for (auto& sender : senders) sender.join();
  CHECK(in_order);
  CHECK((next == std::vector<int>(kSenders, kMessages)));
}

TEST_CASE("[T06] a thread's receive ends at its deadline when nothing comes, and goes on to wait for what does") {
  ThreadActorSystem rank;
  ThreadActor self(rank.system);
  bool gave_up = false;
  std::optional<int> got;
  self->receive([&](int value) { got = value; }, caf::after(1ms) >> [&] { gave_up = true; });
  CHECK(gave_up);
  CHECK(!got);
  std::thread sender([address = self.handle()] { caf::anon_send(address, 7); });
  self->receive([&](int value) { got = value; });
  sender.join();
  CHECK((got == 7));
}

TEST_CASE("[T06] a request to a thread's mailbox that is gone is answered with an error") {
  ThreadActorSystem rank;
  caf::actor gone;
  {
    ThreadActor self(rank.system);
    gone = self.handle();
    caf::anon_send(gone, 1);  // dropped
  }
  ThreadActor self(rank.system);
  bool refused = false;
  self->request(gone, 30s, 2).receive([](int) {}, [&](const caf::error&) { refused = true; });
  CHECK(refused);
}
