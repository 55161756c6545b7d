#include "launch/network/secure_link.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "launch/network/join_proof.hpp"
#include "launch/network/passage.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Local = asio::local::stream_protocol;

struct Link : std::enable_shared_from_this<Link> {
  Link(asio::io_context& context, const JobKeys& keys, std::chrono::milliseconds patience)
      : io(context),
        token(keys.token),
        tls(tls_context(keys, false)),
        stream(context, tls),
        timer(context),
        deadline(Clock::now() + patience) {}

  void start(const tcp::resolver::results_type& addresses) {
    timer.expires_at(deadline);
    timer.async_wait([self = shared_from_this()](const std::error_code& cancelled) {
      if (!cancelled) self->fail("no answer in time");
    });
    connect(addresses);
  }

  void connect(const tcp::resolver::results_type& addresses) {
    asio::async_connect(stream.next_layer(), addresses,
                        [self = shared_from_this()](const std::error_code& failure, const tcp::endpoint&) {
                          if (failure) return self->fail(failure.message());
                          set_up(self->stream.next_layer());
                          self->stream.async_handshake(asio::ssl::stream_base::client,
                                                       [self](const std::error_code& refused) {
                                                         if (refused) return self->fail(self->why_not(refused));
                                                         self->prove();
                                                       });
                        });
  }

  std::string why_not(const std::error_code& refused) {
    const bool theirs = SSL_get_verify_result(stream.native_handle()) == X509_V_OK;
    return theirs ? why(refused) : kOtherKeys;
  }

  void prove() {
    if (over) return;
    proof = join_proof(stream, token, false);
    asio::async_write(
        stream, asio::buffer(proof), [self = shared_from_this()](const std::error_code& failure, std::size_t) {
          if (failure) return self->fail(why(failure));
          asio::async_read(self->stream, asio::buffer(self->answer),
                           [self](const std::error_code& unread, std::size_t) {
                             if (unread) return self->fail("the coordinator does not accept our keys: " + why(unread));
                             self->judge();
                           });
        });
  }

  void judge() {
    if (over) return;
    if (!equal_secrets({answer.data(), answer.size()}, join_proof(stream, token, true))) return fail(kOtherKeys);
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return fail(std::system_category().message(errno));
    over = true;
    timer.cancel();
    typename Passage<TlsStream>::Events events;
    events.ended = [keep = shared_from_this()](const char*) {};  // the TLS context with it
    std::make_shared<Passage<TlsStream>>(std::move(stream), Local::socket(io, Local(), ends[0]),
                                         FrameCheck(FrameCheck::From::server), deadline, std::move(events))
        ->start();
    promise.set_value(ends[1]);
  }

  void fail(const std::string& reason) {
    if (over) return;
    over = true;
    timer.cancel();
    std::error_code ignored;
    stream.lowest_layer().close(ignored);
    promise.set_exception(std::make_exception_ptr(Error(ErrorCode::unavailable, "coordinator", reason)));
  }

  asio::io_context& io;
  std::string token;
  asio::ssl::context tls;
  TlsStream stream;
  asio::steady_timer timer;
  Clock::time_point deadline;
  std::string proof;
  std::array<char, kProofLength> answer{};
  std::promise<int> promise;
  bool over = false;
};

}  // namespace

std::future<int> open_secure_link(asio::io_context& io, const JobKeys& keys, const std::string& host,
                                  std::uint16_t port, std::chrono::milliseconds patience) {
  const auto link = std::make_shared<Link>(io, keys, patience);
  auto future = link->promise.get_future();
  std::error_code failure;  // here: asio would start a thread for it
  const auto addresses = tcp::resolver(io).resolve(host, std::to_string(port), tcp::resolver::numeric_service, failure);
  if (failure) {
    link->fail(failure.message());
  } else {
    asio::post(io, [link, addresses] { link->start(addresses); });
  }
  return future;
}

}  // namespace troupe
