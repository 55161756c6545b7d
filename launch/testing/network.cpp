#include "launch/testing/network.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace troupe::testing {

std::string type_of(const caf::message& content) {
  if (content.empty()) return "nothing";
  const auto [number, info] = content.type(0);
  if (info == nullptr) {
    const std::string name = caf::numbered_type_names[number - 1];
    return name == "@str" ? "string" : name;
  }
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(info->name(), nullptr, nullptr, &status),
                                                    std::free);
  std::string name = text ? text.get() : info->name();
  name = name.substr(0, name.find('<'));
  return name.substr(name.rfind(':') + 1);
}

/// Stands for an actor of a connection's other end.
class Network::Proxy final : public caf::actor_proxy {
 public:
  Proxy(caf::actor_config& config, std::shared_ptr<Network> network, ConnectionPtr connection, int way,
        caf::strong_actor_ptr target)
      : caf::actor_proxy(config),
        network_(std::move(network)),
        connection_(std::move(connection)),
        way_(way),
        target_(std::move(target)) {}

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) override {
    const auto sender = network_->proxy(connection_, 1 - way_, what->sender);
    const auto id = what->mid;
    auto content = what->move_content_to_message();
    const auto type = type_of(content);
    network_->post(connection_, way_, type, [target = target_, sender, id, content = std::move(content)] {
      target->enqueue(sender, id, content, nullptr);
    });
  }
  void kill_proxy(caf::execution_unit* unit, caf::error reason) override { cleanup(std::move(reason), unit); }

 private:
  const std::shared_ptr<Network> network_;
  const ConnectionPtr connection_;
  const int way_;
  const caf::strong_actor_ptr target_;
};

Network::Network(caf::actor_system& system, std::vector<ClusterFault> faults, Came came)
    : system_(system), faults_(std::move(faults)), came_(std::move(came)), message_faults_(faults_) {
  const bool holds = std::any_of(faults_.begin(), faults_.end(), [](const auto& fault) {
    return fault.kind == ClusterFault::Kind::cut || fault.kind == ClusterFault::Kind::delay;
  });
  if (holds) late_ = std::thread([this] { deliver_late(); });
}

Network::~Network() { end(); }

std::vector<SentMessage> Network::end() {
  // Outside of the lock they go: what a proxy or a message held may be the last of an actor.
  std::vector<ConnectionPtr> connections;
  std::vector<std::map<caf::actor_id, caf::strong_actor_ptr>> proxies;
  std::vector<std::deque<Held>> held;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    connections.swap(connections_);
    for (const auto& connection : connections) {
      for (auto& way : connection->ways) {
        held.push_back(std::exchange(way.held, {}));
        if (way.swapped) held.back().push_back(*std::exchange(way.swapped, std::nullopt));
        proxies.push_back(std::exchange(way.proxies, {}));
      }
    }
    changed_.notify_all();
  }
  if (late_.joinable()) late_.join();
  const std::lock_guard lock(mutex_);
  return std::exchange(sent_, {});
}

caf::strong_actor_ptr Network::connect(NetworkEnd here, NetworkEnd there, const caf::strong_actor_ptr& actor) {
  auto connection = std::make_shared<Connection>();
  connection->ways[0].from = connection->ways[1].to = std::move(here);
  connection->ways[0].to = connection->ways[1].from = std::move(there);
  {
    const std::lock_guard lock(mutex_);
    connections_.push_back(connection);
  }
  return proxy(connection, 0, actor);
}

caf::strong_actor_ptr Network::proxy(const ConnectionPtr& connection, int way, const caf::strong_actor_ptr& target) {
  if (!target) return nullptr;
  const auto id = target->id();
  caf::strong_actor_ptr made;
  {
    const std::lock_guard lock(mutex_);
    if (over_) return nullptr;
    auto& known = connection->ways[way].proxies[id];
    if (known) return known;
    caf::actor_config config;
    made = known = caf::make_actor<Proxy, caf::strong_actor_ptr>(system_.next_actor_id(), system_.node(), &system_,
                                                                 config, shared_from_this(), connection, way, target);
  }
  // Its end comes behind what it has sent. Outside of the lock: of one that has ended it comes at once.
  target->get()->attach_functor(
      [network = weak_from_this(), connection = std::weak_ptr(connection), way, id](const caf::error& reason) {
        const auto still = network.lock();
        const auto mine = connection.lock();
        if (still && mine) still->close(mine, way, id, reason);
      });
  return made;
}

void Network::close(const ConnectionPtr& connection, int way, caf::actor_id actor, const caf::error& reason) {
  std::unique_lock lock(mutex_);
  if (over_) return;
  auto& back = connection->ways[1 - way];
  hold(
      back,
      [this, connection, way, actor, reason] {
        caf::strong_actor_ptr gone;
        {
          const std::lock_guard lock(mutex_);
          auto& proxies = connection->ways[way].proxies;
          if (const auto found = proxies.find(actor); found != proxies.end()) {
            gone = std::move(found->second);
            proxies.erase(found);
          }
        }
        if (gone) static_cast<Proxy*>(gone->get())->kill_proxy(nullptr, reason);
      },
      Clock::now());
  flush(back, lock);
}

void Network::post(const ConnectionPtr& connection, int number, const std::string& type,
                   std::function<void()> arrives) {
  std::unique_lock lock(mutex_);
  if (over_) return;
  auto& way = connection->ways[number];
  auto due = Clock::now();
  auto& sent = sent_.emplace_back(SentMessage{way.from.name, way.to.name, type, due - began_});
  if (const auto hit = message_faults_.hit(way.from.rank, way.to.rank, type)) {
    const auto kind = faults_[*hit].kind;
    if (kind == ClusterFault::Kind::reorder && !way.swapped) {
      way.swapped = Held{due, std::move(arrives)};
      way.swap = *hit;
      return;
    }
    if (kind != ClusterFault::Kind::reorder) came_(*hit);
    if (kind == ClusterFault::Kind::drop) {
      sent.dropped = true;
      return;
    }
    due += faults_[*hit].lasts;
  }
  hold(way, std::move(arrives), due);
  if (way.swapped) {
    came_(way.swap);
    hold(way, std::move(std::exchange(way.swapped, std::nullopt)->arrives), due);
  }
  flush(way, lock);
}

// The lock is held, as in all below.
void Network::hold(Way& way, std::function<void()> arrives, Clock::time_point due) {
  way.held.push_back({due, std::move(arrives)});
}

void Network::flush(Way& way, std::unique_lock<std::mutex>& lock) {
  if (way.delivers) return;  // that thread takes it along
  way.delivers = true;
  while (!way.held.empty() && way_is_free(way) <= Clock::now()) {
    const auto arrives = std::move(way.held.front().arrives);
    way.held.pop_front();
    lock.unlock();
    arrives();
    lock.lock();
  }
  way.delivers = false;
  if (!way.held.empty()) changed_.notify_all();
}

Network::Clock::time_point Network::way_is_free(const Way& way) const {
  return std::max(way.held.front().due, free_from(way.from.host, way.to.host));
}

Network::Clock::time_point Network::free_from(int host, int other) const {
  auto from = Clock::time_point::min();
  for (const auto& cut : cuts_) {
    if ((cut.host == host && cut.other == other) || (cut.host == other && cut.other == host))
      from = std::max(from, cut.until);
  }
  return from;
}

void Network::begin(std::size_t number) {
  const auto& fault = faults_[number];
  const std::lock_guard lock(mutex_);
  if (fault.kind == ClusterFault::Kind::cut) {
    cuts_.push_back({fault.host.number, fault.other.number, Clock::now() + fault.lasts});
    changed_.notify_all();
  } else {
    message_faults_.begin(number);
  }
}

bool Network::await_way(const std::set<int>& hosts, Clock::time_point deadline, const std::atomic<bool>& given_up) {
  std::unique_lock lock(mutex_);
  while (!given_up && !over_) {
    auto free = Clock::time_point::min();
    for (const int host : hosts) {
      for (const int other : hosts) free = std::max(free, free_from(host, other));
    }
    const auto now = Clock::now();
    if (free <= now) return true;
    if (deadline <= now) return false;
    changed_.wait_until(lock, std::min(free, deadline));
  }
  return true;
}

bool Network::is_cut(int host, int other) {
  const std::lock_guard lock(mutex_);
  return free_from(host, other) > Clock::now();
}

void Network::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Network::deliver_late() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    auto next = Clock::time_point::max();
    const auto connections = connections_;
    for (const auto& connection : connections) {
      for (auto& way : connection->ways) {
        if (way.held.empty() || way.delivers) continue;
        if (way_is_free(way) <= Clock::now()) flush(way, lock);
        if (!way.held.empty()) next = std::min(next, way_is_free(way));
      }
    }
    if (over_) return;
    if (next == Clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, next);
    }
  }
}

}  // namespace troupe::testing
