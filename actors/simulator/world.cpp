#include "actors/simulator/world.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>

namespace troupe::simulator {

using namespace std::chrono_literals;

namespace {

constexpr std::size_t kRemembered = 400;

}  // namespace

std::string name_of(const caf::message& content) {
  if (content.empty()) return "nothing";
  const auto type = content.type(0);
  if (type.second == nullptr) return "type " + std::to_string(type.first);
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(type.second->name(), nullptr, nullptr, &status),
                                                    std::free);
  const std::string name = text ? text.get() : type.second->name();
  return name.substr(name.rfind(':') + 1);
}

/// Stands at one side of a connection for an actor of the other.
class Proxy final : public caf::actor_proxy {
 public:
  Proxy(caf::actor_config& config, World& world, Connection& connection, int side, caf::strong_actor_ptr target)
      : caf::actor_proxy(config), world_(world), connection_(connection), side_(side), target_(std::move(target)) {}

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) override {
    if (connection_.open)
      world_.post(connection_, side_, target_, what->sender, what->mid, what->move_content_to_message());
  }
  void kill_proxy(caf::execution_unit* unit, caf::error reason) override {
    target_ = nullptr;
    cleanup(std::move(reason), unit);
  }

 private:
  World& world_;
  Connection& connection_;
  int side_;
  caf::strong_actor_ptr target_;
};

Connection::Connection(int id, Process& from, Process& to, std::string name, std::uint64_t seed)
    : id(id), name(std::move(name)), draw(seed, this->name) {
  sides[0].process = &from;
  sides[1].process = &to;
}

World::Config::Config() {
  set("scheduler.policy", caf::atom("testing"));
  set("logger.console", caf::atom("none"));
}

World::World(std::uint64_t seed)
    : seed_(seed),
      choice_(seed, "next actor"),
      system_(config_),
      scheduler_(dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())) {
  while (scheduler_.try_run_once()) {
  }
  begun_ = now();
}

World::~World() { end(); }

void World::end() {
  on_message = nullptr;
  for (auto& process : processes_) {
    process->frozen = false;
    if (process->alive) kill(*process);
  }
  for (auto& connection : connections_) {
    if (connection) forget(*connection);
  }
  scheduler_.clock().cancel_all();
  while (scheduler_.try_run_once()) {
  }
  scheduler_.clock().cancel_all();
  events_.clear();
  delivered_.clear();
  system_.await_actors_before_shutdown(false);
}

Time World::now() const noexcept { return scheduler_.clock().current_time; }
milliseconds World::time() const noexcept { return std::chrono::duration_cast<milliseconds>(now() - begun_); }

void World::after(std::chrono::nanoseconds delay, std::function<void()> what) {
  events_.emplace(now() + delay, std::move(what));
}

Process& World::start(const std::string& name, int host) {
  auto process = std::make_unique<Process>();
  process->id = static_cast<int>(processes_.size());
  const int life = names_[name]++;
  process->name = name + (life > 0 ? "." + std::to_string(life) : "");
  process->host = host;
  processes_.push_back(std::move(process));
  log("start " + processes_.back()->name);
  return *processes_.back();
}

void World::place(Process& process, caf::strong_actor_ptr actor) {
  places_[actor->id()] = &process;
  process.actors.push_back(std::move(actor));
}

Process* World::process_of(caf::actor_id id) const {
  const auto found = places_.find(id);
  return found == places_.end() ? nullptr : found->second;
}

void World::kill(Process& process) {
  if (!process.alive) return;
  log("end " + process.name);
  process.alive = process.frozen = false;
  for (const auto& actor : std::exchange(process.actors, {}))
    caf::anon_send_exit(caf::actor_cast<caf::actor>(actor), caf::exit_reason::kill);
  const auto connections = process.connections;
  for (const auto& [id, connection] : connections) close(*connection, connection->side_of(process));
}

Connection* World::connect(Process& from, Process& to, const std::string& name) {
  if (!from.alive || !to.alive || parted(from.host, to.host)) return nullptr;
  const auto key = from.name + ">" + to.name + " " + name;
  const int again = names_[key]++;
  const int id = static_cast<int>(connections_.size());
  connections_.push_back(
      std::make_unique<Connection>(id, from, to, again > 0 ? key + "." + std::to_string(again) : key, seed_));
  auto* connection = connections_.back().get();
  from.connections.emplace(id, connection);
  to.connections.emplace(id, connection);
  return connection;
}

caf::strong_actor_ptr World::proxy(Connection& connection, const Process& at, const caf::strong_actor_ptr& target) {
  if (!target) return nullptr;
  const int side = connection.side_of(at);
  auto& known = connection.sides[side].proxies[target->id()];
  if (!known) {
    caf::actor_config config;
    known = caf::make_actor<Proxy, caf::strong_actor_ptr>(system_.next_actor_id(), system_.node(), &system_, config,
                                                          *this, connection, side, target);
  }
  return known;
}

void World::send(Connection& connection, int from, std::function<void()> arrives) {
  auto& side = connection.sides[from];
  if (!connection.open || !side.process->alive) return;
  // Most messages take a moment, one in fifty much longer.
  auto delay = std::chrono::microseconds(connection.draw.in(50, 1'500));
  if (connection.draw.once_in(50)) delay += std::chrono::microseconds(connection.draw.in(1'000, 60'000));
  side.last = std::max(side.last + 1us, now() + delay + extra_);
  events_.emplace(side.last, [this, &connection, from, arrives = std::move(arrives)]() mutable {
    arrive(connection, from, std::move(arrives));
  });
}

void World::arrive(Connection& connection, int from, std::function<void()> what) {
  auto& stalled = connection.sides[from].stalled;
  if (parted(connection.sides[0].process->host, connection.sides[1].process->host) || !stalled.empty()) {
    stalled.push_back(std::move(what));
  } else {
    what();
  }
}

// What was held up is sent again, as TCP does: after a pause that is another one for each connection.
void World::mend() {
  parted_.clear();
  for (auto& connection : connections_) {
    if (!connection) continue;
    for (int from = 0; from < 2; ++from) {
      auto& side = connection->sides[from];
      if (side.stalled.empty()) continue;
      side.last = std::max(side.last, now() + milliseconds(connection->draw.in(1, 1'500)));
      events_.emplace(side.last, [this, connection = connection.get(), from] {
        if (parted(connection->sides[0].process->host, connection->sides[1].process->host)) return;
        for (auto& what : std::exchange(connection->sides[from].stalled, {})) what();
      });
    }
  }
}

void World::post(Connection& connection, int from, const caf::strong_actor_ptr& target, caf::strong_actor_ptr sender,
                 caf::message_id mid, caf::message content) {
  send(connection, from,
       [this, &connection, from, target, sender = std::move(sender), mid, content = std::move(content)]() mutable {
         if (may_repeat && mid.is_async() && may_repeat(content)) {
           delivered_.push_back({&connection, from, target, sender, content});
           if (delivered_.size() > kRemembered) delivered_.pop_front();
         }
         deliver(connection, from, target, sender, mid, std::move(content));
       });
}

void World::deliver(Connection& connection, int from, const caf::strong_actor_ptr& target,
                    const caf::strong_actor_ptr& sender, caf::message_id mid, caf::message content) {
  auto& receiver = *connection.sides[1 - from].process;
  if (!connection.open || !receiver.alive || !target) return;
  ++messages;
  if (keep_lines) log(connection.sides[from].process->name + " > " + receiver.name + ": " + name_of(content));
  if (on_message) on_message(*connection.sides[from].process, receiver, content);
  target->enqueue(proxy(connection, receiver, sender), mid, std::move(content), nullptr);
}

void World::replay(int n, milliseconds within) {
  Draw draw(seed_, "replay");
  for (; n > 0 && !delivered_.empty(); --n) {
    const auto& old = delivered_[draw.next() % delivered_.size()];
    after(milliseconds(draw.in(0, within.count())), [this, old] {
      deliver(*old.connection, old.from, old.target, old.sender, caf::make_message_id(), old.content);
    });
  }
}

void World::close(Connection& connection, int from) {
  if (!connection.open) return;
  auto& other = connection.sides[1 - from];
  // Not `send`: its process may be dead.
  auto& side = connection.sides[from];
  side.last = std::max(side.last + 1us, now() + std::chrono::microseconds(connection.draw.in(50, 30'000)));
  events_.emplace(side.last, [this, &connection, &other, from] {
    arrive(connection, from, [this, &connection, &other] {
      if (!connection.open) return;
      forget(connection);
      if (other.process->alive && other.closed) other.closed();
    });
  });
}

void World::cut(Connection& connection) {
  if (!connection.open) return;
  log("cut " + connection.name);
  connection.open = false;
  // One side may notice much later than the other.
  for (auto& side : connection.sides) {
    after(milliseconds(connection.draw.in(0, connection.draw.once_in(2) ? 3 : 1'500)), [this, &connection, &side] {
      forget(connection, side);
      if (side.process->alive && side.closed) side.closed();
    });
  }
}

void World::forget(Connection& connection) {
  connection.open = false;
  for (auto& side : connection.sides) forget(connection, side);
}

void World::forget(Connection& connection, Connection::Side& side) {
  side.process->connections.erase(connection.id);
  side.stalled.clear();
  for (auto& [id, proxy] : std::exchange(side.proxies, {}))
    static_cast<Proxy*>(proxy->get())->kill_proxy(nullptr, caf::exit_reason::remote_link_unreachable);
}

bool World::run_job() {
  auto& jobs = scheduler_.jobs;
  if (jobs.empty()) return false;
  const auto n = jobs.size();
  auto at = n == 1 ? 0 : choice_.next() % std::min<std::size_t>(n, 16);
  for (std::size_t tried = 0; tried < n; ++tried, at = at + 1 == n ? 0 : at + 1) {
    auto* actor = dynamic_cast<caf::abstract_actor*>(jobs[at]);
    auto* process = actor ? process_of(actor->id()) : nullptr;
    if (process && process->frozen) continue;
    if (at > 0)
      std::rotate(jobs.begin(), jobs.begin() + static_cast<std::ptrdiff_t>(at),
                  jobs.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ++jobs_run;
    if (!process || !counts_time) {
      scheduler_.run_once();
      return true;
    }
    const auto started = std::chrono::steady_clock::now();
    scheduler_.run_once();
    process->spent += std::chrono::steady_clock::now() - started;
    return true;
  }
  return false;
}

bool World::step() {
  if (run_job()) return true;
  auto& clock = scheduler_.clock();
  const auto& timeouts = clock.schedule();
  if (events_.empty() && timeouts.empty()) return false;
  const bool is_event = timeouts.empty() || (!events_.empty() && events_.begin()->first <= timeouts.begin()->first);
  const auto next = is_event ? events_.begin()->first : timeouts.begin()->first;
  clock.current_time = std::max(clock.current_time, next);
  if (is_event) {
    auto what = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    what();
  } else {
    clock.trigger_timeout();
  }
  return true;
}

void World::log(const std::string& line) {
  const auto text =
      std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(now() - begun_).count()) + " " + line;
  for (const char c : text) log_hash_ = (log_hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  if (keep_lines) lines.push_back(text);
}

}  // namespace troupe::simulator
