#include "launch/network/gate.hpp"

#include <fcntl.h>

#include <array>
#include <list>
#include <map>
#include <utility>

#include "launch/network/join_proof.hpp"
#include "launch/network/passage.hpp"
#include "launch/network/refusals.hpp"
#include "launch/process/peer_user.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Local = asio::local::stream_protocol;

std::string digest_of_peer(TlsStream& stream) {
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(::SSL_get1_peer_certificate(stream.native_handle()),
                                                                &X509_free);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (!certificate || ::X509_digest(certificate.get(), ::EVP_sha256(), digest.data(), &size) != 1) return {};
  return {reinterpret_cast<const char*>(digest.data()), size};
}

void keep_from_children(int fd) { ::fcntl(fd, F_SETFD, FD_CLOEXEC); }

}  // namespace

struct Gate::State : std::enable_shared_from_this<Gate::State> {
  struct Waiting {
    std::string address;
    std::function<void(const std::string&)> end;
  };
  using Place = std::list<Waiting>::iterator;
  // Who goes by the name of a node: CAF sends to the newest connection that says it is the node.
  struct Holder {
    std::string certificate;
    int connections = 0;
  };

  State(asio::io_context& context, GateOptions gate_options)
      : io(context), options(std::move(gate_options)), acceptor(context), pause(context) {
    if (options.keys) tls.emplace(tls_context(*options.keys, true));
  }

  void listen() {
    const tcp::endpoint endpoint(asio::ip::make_address(options.address), options.port);
    acceptor.open(endpoint.protocol());
    keep_from_children(acceptor.native_handle());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen();
    port = acceptor.local_endpoint().port();
  }

  void accept() {
    acceptor.async_accept([self = shared_from_this()](const std::error_code& failure, tcp::socket socket) {
      if (!self->acceptor.is_open()) return;
      if (failure) {  // no descriptor is left, say
        self->pause.expires_after(std::chrono::milliseconds(100));
        self->pause.async_wait([self](const std::error_code& cancelled) {
          if (!cancelled) self->accept();
        });
        return;
      }
      self->greet(std::move(socket));
      self->accept();
    });
  }

  void greet(tcp::socket socket) {
    std::error_code failure;
    const auto peer = socket.remote_endpoint(failure);
    if (failure) return refuse("an unknown address", "it closed at once", false);
    const auto address = peer.address().to_string();
    if (!limit.may_try(address, Clock::now())) return refuse(address, "too many attempts", false);
    if (options.owner && user_of_peer(*reinterpret_cast<const sockaddr_in*>(peer.data()), port) != options.owner)
      return refuse(address, "a process of another user", true);
    set_up(socket);
    make_place(address);
    if (tls) {
      std::make_shared<Handshake>(shared_from_this(), std::move(socket), address)->start();
    } else {
      let_in(std::move(socket), {}, waiting.insert(waiting.end(), {address, {}}), Clock::now() + options.patience);
    }
  }

  // The oldest makes place: a peer that is the job's gets through in milliseconds.
  void make_place(const std::string& address) {
    std::size_t same = 0;
    auto oldest = waiting.end();
    for (auto place = waiting.begin(); place != waiting.end(); ++place) {
      if (place->address == address && ++same == 1) oldest = place;
    }
    if (same < options.waiting_per_address) oldest = waiting.size() < options.waiting ? waiting.end() : waiting.begin();
    if (oldest != waiting.end()) std::exchange(oldest->end, {})("too many at once");
  }

  // Takes the place with it. `certificate`: its digest; empty: there are no keys.
  template <class Stream>
  void let_in(Stream stream, const std::string& certificate, Place place, Clock::time_point deadline) {
    Local::socket inside(io);
    std::error_code failure;
    inside.open(Local(), failure);
    if (!failure) keep_from_children(inside.native_handle()), inside.non_blocking(true, failure);
    if (!failure) inside.connect(Local::endpoint(options.inside), failure);
    if (failure) return leave(place, "the coordinator accepts no more connections");
    auto greeted = std::make_shared<bool>(false);
    typename Passage<Stream>::Events events;
    auto name = std::make_shared<std::string>();
    events.greeted = [self = shared_from_this(), place, greeted, name, certificate](const std::string& node) {
      const auto [holder, is_new] = self->holders.try_emplace(node, Holder{certificate});
      if (holder->second.certificate != certificate) return "the name of another process that is connected";
      ++holder->second.connections;
      *name = node;
      *greeted = true;
      self->waiting.erase(place);
      return static_cast<const char*>(nullptr);
    };
    events.ended = [self = shared_from_this(), place, greeted, name, address = place->address](const char* reason) {
      const auto holder = self->holders.find(*name);
      if (holder != self->holders.end() && --holder->second.connections == 0) self->holders.erase(holder);
      if (!*greeted) return self->leave(place, reason != nullptr ? reason : "no handshake");
      if (reason != nullptr) self->refuse(address, reason, true);
    };
    auto passage = std::make_shared<Passage<Stream>>(std::move(stream), std::move(inside),
                                                     FrameCheck(FrameCheck::From::client, options.messages), deadline,
                                                     std::move(events));
    place->end = [weak = std::weak_ptr(passage)](const std::string& reason) {
      if (const auto found = weak.lock()) found->end(reason.c_str());
    };
    passage->start();
  }

  void leave(Place place, const std::string& reason) {
    const auto address = place->address;
    waiting.erase(place);
    refuse(address, reason, true);
  }

  void refuse(const std::string& address, const std::string& reason, bool counts) {
    if (closing) return;
    if (counts) limit.failed(address, Clock::now());
    const auto line = refusals.count(address, reason);
    if (!line.empty()) log(line);
  }

  void log(const std::string& line) const {
    if (options.log) options.log("gate: " + line);
  }

  void close() {
    std::error_code ignored;
    acceptor.close(ignored);
    pause.cancel();
    closing = true;
    while (!waiting.empty()) std::exchange(waiting.front().end, {})("the end");
    if (const auto line = refusals.summary(); !line.empty()) log(line);
  }

  // A peer between TCP's handshake and its proof.
  struct Handshake : std::enable_shared_from_this<Handshake> {
    Handshake(std::shared_ptr<State> state, tcp::socket socket, const std::string& address)
        : gate(std::move(state)),
          stream(std::move(socket), *gate->tls),
          timer(gate->io),
          deadline(Clock::now() + gate->options.patience),
          place(gate->waiting.insert(gate->waiting.end(), {address, {}})) {}

    void start() {
      place->end = [weak = weak_from_this()](const std::string& reason) {
        if (const auto self = weak.lock()) self->end(reason);
      };
      timer.expires_at(deadline);
      timer.async_wait([self = shared_from_this()](const std::error_code& cancelled) {
        if (!cancelled) self->end("too slow");
      });
      stream.async_handshake(asio::ssl::stream_base::server, [self =
                                                                  shared_from_this()](const std::error_code& failure) {
        if (self->over) return;
        if (failure) return self->end(self->reason_of(failure));
        asio::async_read(self->stream, asio::buffer(self->proof), [self](const std::error_code& unread, std::size_t) {
          if (self->over) return;
          if (unread) return self->end("no proof of the job's token");
          self->judge();
        });
      });
    }

    void judge() {
      const auto& token = gate->options.keys->token;
      if (!equal_secrets({proof.data(), proof.size()}, join_proof(stream, token, false))) return end("a wrong token");
      answer = join_proof(stream, token, true);
      asio::async_write(stream, asio::buffer(answer),
                        [self = shared_from_this()](const std::error_code& unwritten, std::size_t) {
                          if (self->over) return;
                          if (unwritten) return self->end("no handshake");
                          self->over = true;
                          self->timer.cancel();
                          const auto certificate = digest_of_peer(self->stream);
                          self->gate->let_in(std::move(self->stream), certificate, self->place, self->deadline);
                        });
    }

    std::string reason_of(const std::error_code& failure) {
      const auto verdict = SSL_get_verify_result(stream.native_handle());
      return verdict == X509_V_OK ? why(failure) : "a certificate that is not the job's";
    }

    void end(const std::string& reason) {
      if (over) return;
      over = true;
      timer.cancel();
      std::error_code ignored;
      stream.lowest_layer().close(ignored);
      gate->leave(place, reason);
    }

    std::shared_ptr<State> gate;
    TlsStream stream;
    asio::steady_timer timer;
    Clock::time_point deadline;
    Place place;
    std::array<char, kProofLength> proof{};
    std::string answer;
    bool over = false;
  };

  asio::io_context& io;
  GateOptions options;
  std::optional<asio::ssl::context> tls;
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::uint16_t port = 0;
  std::list<Waiting> waiting;             // the oldest first
  std::map<std::string, Holder> holders;  // by the node's name
  Refusals refusals;
  AttemptLimit limit;
  bool closing = false;
};

Gate::Gate(asio::io_context& io, GateOptions options) : state_(std::make_shared<State>(io, std::move(options))) {
  try {
    state_->listen();
  } catch (const std::system_error& error) {
    throw Error(
        ErrorCode::unavailable, "coordinator",
        "cannot listen on " + state_->options.address + ":" + std::to_string(state_->options.port) + " (" +
            error.code().message() + ")",
        error.code() == asio::error::address_in_use ? "choose another port" : "is it an address of this machine?");
  }
  asio::post(io, [state = state_] { state->accept(); });
}

Gate::~Gate() {
  asio::post(state_->io, [state = state_] { state->close(); });
}

std::uint16_t Gate::port() const noexcept { return state_->port; }

}  // namespace troupe
