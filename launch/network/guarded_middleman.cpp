#include "launch/network/guarded_middleman.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <caf/io/basp_broker.hpp>
#include <caf/io/middleman_actor_impl.hpp>
#include <caf/io/network/default_multiplexer.hpp>
#include <caf/io/network/doorman_impl.hpp>
#include <caf/io/network/scribe_impl.hpp>

#include <cerrno>
#include <cstddef>
#include <future>
#include <optional>
#include <system_error>
#include <thread>

#include "actors/messages/coordinator_actor.hpp"
#include "launch/network/buffered_scribe.hpp"
#include "launch/network/gate.hpp"
#include "launch/network/secure_link.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

namespace net = caf::io::network;

constexpr std::chrono::milliseconds kLastBytes{2'000};

// CAF's port: a local socket with a name of the kernel's choosing. Only the gate, which is this process, may connect to
// it.
class InsideDoor : public net::doorman_impl {
 public:
  InsideDoor(net::default_multiplexer& multiplexer, int fd, std::uint16_t port, std::string address)
      : doorman_impl(multiplexer, fd), port_(port), address_(std::move(address)) {}

  bool new_connection() override {
    const auto fd = acceptor_.accepted_socket();
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid != ::getpid())
      return ::close(fd), true;
    if (detached()) return ::close(fd), false;
    const auto scribe = caf::make_counted<BufferedScribe>(acceptor_.backend(), fd);
    parent()->add_scribe(scribe);
    return doorman::new_connection(&acceptor_.backend(), scribe->hdl());
  }
  std::string addr() const override { return address_; }
  std::uint16_t port() const override { return port_; }

 private:
  std::uint16_t port_;
  std::string address_;
};

// Listens; the name, as a sockaddr has it.
std::pair<int, std::string> listen_inside() {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t size = sizeof address;
  if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(sa_family_t)) != 0 ||
      ::listen(fd, SOMAXCONN) != 0 || ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    throw Error(ErrorCode::unavailable, "coordinator", "no local socket: " + std::system_category().message(error));
  }
  return {fd, std::string(address.sun_path, size - offsetof(sockaddr_un, sun_path))};
}

// As they stand in a frame. And what CAF itself asks and answers when two nodes meet.
template <class... Message>
std::vector<std::string> names_of(const std::tuple<Message...>*) {
  return {"@<>+" + std::string(name_of_struct<Message>())..., "@<>+@atom+@atom+@str",
          "@<>+@atom+@str+@strong_actor_ptr+@str"};
}

}  // namespace

struct GuardedMiddleman::Thread {
  Thread()
      : work(asio::make_work_guard(io)), ended(done.get_future()), thread([this] { io.run(), done.set_value(); }) {}
  // CAF has closed its sockets: what it wrote last still goes out.
  ~Thread() {
    gate.reset();
    work.reset();
    if (ended.wait_for(kLastBytes) != std::future_status::ready) io.stop();
    thread.join();
  }

  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::optional<Gate> gate;
  int door = -1;  // listens for the gate; the middleman takes it
  std::promise<void> done;
  std::future<void> ended;
  std::thread thread;
};

// CAF's own does the rest: who is published, which connections there are.
class GuardedMiddleman::Middleman : public caf::io::middleman_actor_impl {
 public:
  Middleman(caf::actor_config& config, caf::actor broker, GuardedMiddleman* owner)
      : middleman_actor_impl(config, std::move(broker)), owner_(owner) {}

 protected:
  caf::expected<caf::io::scribe_ptr> connect(const std::string& host, std::uint16_t port) override {
    try {
      int fd = -1;
      if (owner_->has_keys()) {
        fd = open_secure_link(owner_->thread().io, *owner_->keys_, host, port, owner_->patience_).get();
      } else {
        const auto found = net::new_tcp_connection(host, port);
        if (!found) return found.error();
        fd = *found;
        net::keepalive(fd, true);
      }
      return caf::io::scribe_ptr(caf::make_counted<BufferedScribe>(multiplexer(), fd));
    } catch (const Error& error) {
      return caf::make_error(caf::sec::cannot_connect_to_node, error.report().cause);
    }
  }

  caf::expected<caf::io::doorman_ptr> open(std::uint16_t, const char* address, bool) override {
    auto& thread = owner_->thread();
    return caf::io::doorman_ptr(caf::make_counted<InsideDoor>(multiplexer(), std::exchange(thread.door, -1),
                                                              thread.gate->port(), std::string(address)));
  }

 private:
  net::default_multiplexer& multiplexer() {
    return static_cast<net::default_multiplexer&>(system().middleman().backend());
  }

  GuardedMiddleman* owner_;
};

GuardedMiddleman::GuardedMiddleman(caf::actor_system& system, std::shared_ptr<const JobKeys> keys,
                                   std::function<void(const std::string&)> log)
    : system_(system), keys_(std::move(keys)), log_(std::move(log)) {}

GuardedMiddleman::~GuardedMiddleman() = default;

void GuardedMiddleman::start() {
  actor_ = system_.spawn<Middleman, caf::detached + caf::hidden>(
      system_.middleman().named_broker<caf::io::basp_broker>(caf::atom("BASP")), this);
}

void GuardedMiddleman::stop() {
  caf::scoped_actor self(system_, true);
  self->send_exit(actor_, caf::exit_reason::kill);
  self->wait_for(actor_);
  actor_ = nullptr;
  if (thread_) thread_->gate.reset();
}

GuardedMiddleman& GuardedMiddleman::of(caf::actor_system& system) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-static-cast-downcast): subtype_ptr() of what stands in this place is ours
  return *reinterpret_cast<GuardedMiddleman*>(&system.openssl_manager());
}

GuardedMiddleman::Thread& GuardedMiddleman::thread() {
  std::call_once(started_, [this] { thread_ = std::make_unique<Thread>(); });
  return *thread_;
}

std::uint16_t GuardedMiddleman::publish(const caf::strong_actor_ptr& actor, std::set<std::string> interface,
                                        std::uint16_t port, const std::string& address) {
  auto& thread = this->thread();
  const auto [door, inside] = listen_inside();
  thread.door = door;
  GateOptions options;
  options.address = address;
  options.port = port;
  if (keys_) {
    options.keys = *keys_;
  } else if (asio::ip::make_address(address).is_loopback()) {
    options.owner = ::geteuid();
  }
  options.messages = names_of(static_cast<const MessagesToCoordinator*>(nullptr));
  options.inside = inside;
  options.log = log_;
  thread.gate.emplace(thread.io, options);
  std::string failure;
  caf::scoped_actor self(system_);
  self->request(actor_, caf::infinite, caf::publish_atom::value, thread.gate->port(), actor, std::move(interface),
                address, true)
      .receive([](std::uint16_t) {}, [&](const caf::error& error) { failure = system_.render(error); });
  if (!failure.empty()) throw Error(ErrorCode::unavailable, "coordinator", failure);
  return thread.gate->port();
}

caf::expected<caf::strong_actor_ptr> GuardedMiddleman::connect(const std::set<std::string>& interface,
                                                               const std::string& host, std::uint16_t port,
                                                               std::chrono::milliseconds patience) {
  patience_ = patience;
  caf::expected<caf::strong_actor_ptr> found = caf::make_error(caf::sec::no_actor_published_at_port, port);
  caf::scoped_actor self(system_);
  self->request(actor_, caf::infinite, caf::connect_atom::value, host, port)
      .receive(
          [&](const caf::node_id&, const caf::strong_actor_ptr& actor, const std::set<std::string>& theirs) {
            if (actor == nullptr) return;
            if (system_.assignable(theirs, interface))
              found = actor;
            else
              found = caf::make_error(caf::sec::unexpected_actor_messaging_interface, std::string(kOtherVersion));
          },
          [&](const caf::error& error) { found = error; });
  return found;
}

}  // namespace troupe
