// Messages between actors of two processes, over the same network as those of a job: a gate on loopback, without keys.
//
//   build/release/bench/bench_messages
//
// is driven by lines, as bench/README.md says: `round_trips N` -> `round_trip_us T1 … TN`, one message after the other;
// `pipelined N` -> `messages_per_s X`, N messages on their way at once, each answered. A message is a number.

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "bench/processes.hpp"
#include "launch/network/actor_system.hpp"
#include "launch/network/guarded_middleman.hpp"

namespace {

using Clock = std::chrono::steady_clock;

caf::behavior echo() {
  return {[](std::int64_t number) { return number; }};
}

// Answers until the other process closes its end.
int serve(int other) {
  pin_to_core(1);
  troupe::ActorSystemConfig config(true);
  caf::actor_system system(config);
  const auto actor = system.spawn(echo);
  const auto port =
      troupe::GuardedMiddleman::of(system).publish(caf::actor_cast<caf::strong_actor_ptr>(actor), {}, 0, "127.0.0.1");
  char end = 0;
  if (::write(other, &port, sizeof port) == sizeof port) (void)!::read(other, &end, 1);
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  return 0;
}

void await_answer(caf::scoped_actor& self, std::int64_t number) {
  self->receive([&](std::int64_t answer) {
    if (answer != number)
      throw std::runtime_error("message " + std::to_string(number) + " was answered by " + std::to_string(answer));
  });
}

void drive(caf::scoped_actor& self, const caf::actor& peer) {
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb;
    std::int64_t count = 0;
    if (!(words >> verb >> count) || count < 1 || (verb != "round_trips" && verb != "pipelined")) {
      std::cerr << "bench_messages: '" << line << "': round_trips N or pipelined N are known\n";
      continue;
    }
    const auto begin = Clock::now();
    if (verb == "round_trips") {
      std::cout << "round_trip_us";
      for (std::int64_t i = 0; i < count; ++i) {
        const auto sent = Clock::now();
        self->send(peer, i);
        await_answer(self, i);
        std::cout << ' ' << std::chrono::duration<double, std::micro>(Clock::now() - sent).count();
      }
      std::cout << std::endl;
    } else {
      for (std::int64_t i = 0; i < count; ++i) self->send(peer, i);
      for (std::int64_t i = 0; i < count; ++i) await_answer(self, i);
      std::cout << "messages_per_s "
                << static_cast<double>(count) / std::chrono::duration<double>(Clock::now() - begin).count()
                << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--serve") return serve(std::stoi(argv[2]));
  int ends[2];
  if (argc != 1 || ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
    std::cerr << "usage: bench_messages\n";
    return 64;
  }
  ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  auto other = std::to_string(ends[1]);
  std::string serving = "--serve";
  char* arguments[] = {argv[0], serving.data(), other.data(), nullptr};
  const auto child = start_rank(1, arguments);
  ::close(ends[1]);
  pin_to_core(0);
  std::uint16_t port = 0;
  if (child == 0 || ::read(ends[0], &port, sizeof port) != sizeof port) {
    std::cerr << "bench_messages: the other process did not start\n";
    return 70;
  }
  {
    troupe::ActorSystemConfig config(true);
    caf::actor_system system(config);
    const auto peer = troupe::GuardedMiddleman::of(system).connect({}, "127.0.0.1", port, std::chrono::seconds(5));
    if (!peer) {
      std::cerr << "bench_messages: " << system.render(peer.error()) << '\n';
      return 70;
    }
    caf::scoped_actor self(system);
    drive(self, caf::actor_cast<caf::actor>(*peer));
  }
  ::close(ends[0]);
  return wait_for({child});
}
