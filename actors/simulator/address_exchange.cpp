#include "actors/simulator/address_exchange.hpp"

#include <algorithm>
#include <utility>

#include "actors/simulator/job.hpp"

namespace troupe::simulator {

using namespace std::chrono_literals;

namespace {

const std::string kAddresses = "addresses";

}  // namespace

void AddressExchange::begin(const Membership& membership, int rank, std::function<void()> done, Failed failed) {
  membership_ = membership;
  rank_ = rank;
  done_ = std::move(done);
  failed_ = std::move(failed);
  told_ = nullptr;
  ends_ = job_.world().now() + job_.options().collective_timeout;
  put_address();
  wait();
  ask(0, 1ms);
}

bool AddressExchange::under_way() const { return waits_.what() == kAddresses; }

std::string AddressExchange::key(int rank) const {
  return "g" + std::to_string(membership_.generation) + "/" + std::to_string(rank);
}

void AddressExchange::wait() { waits_.wait(kAddresses, ends_ + 3s - job_.world().now()); }

void AddressExchange::put_address() {
  const auto& coordinator = process_.coordinator;
  if (!coordinator || coordinator == told_) return;
  told_ = coordinator;
  caf::send_as(process_.supervisor, caf::actor_cast<CoordinatorActor>(coordinator),
               PutValue{key(rank_), process_.process->name});
}

void AddressExchange::ask(int peer, milliseconds pause) {
  if (peer == rank_) ++peer;
  if (peer >= membership_.world_size()) {
    waits_.came();
    return std::exchange(done_, nullptr)();
  }
  put_address();
  if (!process_.coordinator) return ask_again(peer, pause);
  const auto current = [this, generation = membership_.generation] {
    return generation == membership_.generation && under_way();
  };
  self_->request(caf::actor_cast<CoordinatorActor>(process_.coordinator), 2s, GetValue{key(peer)})
      .then(
          [this, peer, pause, current](bool there, const std::string&) {
            if (current()) there ? connect(peer, pause) : ask_again(peer, pause);
          },
          [this, peer, pause, current](caf::error&) {
            if (current()) ask_again(peer, pause);
          });
}

void AddressExchange::ask_again(int peer, milliseconds pause) {
  if (job_.world().now() > ends_)
    return std::exchange(failed_, nullptr)(ErrorCode::timeout, "rendezvous",
                                           "rank " + std::to_string(peer) + " published nothing");
  waits_.after(pause, [this, peer, pause] {
    wait();
    ask(peer, std::min(pause * 2, 20ms));
  });
}

void AddressExchange::connect(int peer, milliseconds pause) {
  auto* other = job_.living(membership_.members[static_cast<std::size_t>(peer)].process);
  const auto made = job_.data().connect(membership_.generation, {&process_, rank_}, {other, peer});
  if (made == Connected::later) return ask_again(peer, pause);
  if (made == Connected::refused)
    return std::exchange(failed_, nullptr)(ErrorCode::peer_lost, "connect",
                                           "rank " + std::to_string(peer) + " is out of reach");
  ask(peer + 1, 1ms);
}

}  // namespace troupe::simulator
