#include "launch/observe/metrics_page.hpp"

#include <microhttpd.h>
#include <netinet/in.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "launch/network/job_keys.hpp"
#include "launch/observe/live_page.hpp"
#include "launch/process/peer_user.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

namespace {

struct Answer {
  unsigned status = MHD_HTTP_OK;
  std::string text;
  const char* type = "text/plain";
  std::map<const char*, const char*> headers;
};

// A Host header, with a port or without. Prometheus and browsers send one.
bool is_loopback(std::string_view host) {
  const auto name = host.starts_with("[") ? host.substr(0, host.find(']') + 1) : host.substr(0, host.find(':'));
  return name.empty() || name == "127.0.0.1" || name == "localhost" || name == "[::1]";
}

std::string_view value_of(MHD_Connection* connection, MHD_ValueKind kind, const char* name) {
  const char* value = MHD_lookup_connection_value(connection, kind, name);
  return value == nullptr ? std::string_view() : value;
}

std::string_view token_of(MHD_Connection* connection) {
  constexpr std::string_view kScheme = "Bearer ";
  const auto header = value_of(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
  return header.starts_with(kScheme) ? header.substr(kScheme.size())
                                     : value_of(connection, MHD_GET_ARGUMENT_KIND, "token");
}

MHD_Result send(MHD_Connection* connection, Answer answer) {
  auto* response = MHD_create_response_from_buffer(answer.text.size(), answer.text.data(), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;  // ends the connection
  answer.headers.insert({{MHD_HTTP_HEADER_CONTENT_TYPE, answer.type},
                         {MHD_HTTP_HEADER_CONNECTION, "close"},
                         {MHD_HTTP_HEADER_CACHE_CONTROL, "no-store"},
                         {"X-Content-Type-Options", "nosniff"}});
  for (const auto& [name, value] : answer.headers) MHD_add_response_header(response, name, value);
  const auto sent = MHD_queue_response(connection, answer.status, response);
  MHD_destroy_response(response);
  return sent;
}

}  // namespace

struct MetricsPage::Impl {
  prometheus::Registry registry;  // has a mutex of its own
  std::map<const MetricName*, prometheus::Gauge*> gauges;
  std::map<std::string, prometheus::Gauge*> own;
  prometheus::Gauge *step = nullptr, *epoch = nullptr;
  LiveRecords live;
  const std::uint16_t port;
  const std::string token;
  const uid_t owner;
  MHD_Daemon* daemon = nullptr;
  // The daemon's thread.
  bool owner_comes = false;  // of the connection that is being accepted
  unsigned others = 0;       // connections of other users

  Impl(std::uint16_t own_port, const std::string& job_id, std::string secret, uid_t user, std::string run)
      : live(job_id, std::move(run)), port(own_port), token(std::move(secret)), owner(user) {}
  ~Impl() {
    if (daemon != nullptr) MHD_stop_daemon(daemon);  // ends all connections
  }

  prometheus::Gauge& add(const char* name, const char* help, const prometheus::Labels& labels = {}) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }

  std::string scrape() const { return prometheus::TextSerializer().Serialize(registry.Collect()); }

  bool listen() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, port, &admit, this, &answer, this,
                              MHD_OPTION_SOCK_ADDR, &address, MHD_OPTION_NOTIFY_CONNECTION, &count, this,
                              MHD_OPTION_CONNECTION_LIMIT, kPlaces, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                              std::size_t{kBytesOfRequest}, MHD_OPTION_CONNECTION_TIMEOUT, kSilence, MHD_OPTION_END);
    return daemon != nullptr;
  }

  // A new connection: `admit`, then `count`.
  static MHD_Result admit(void* self, const sockaddr* peer, socklen_t) {
    auto& impl = *static_cast<Impl*>(self);
    impl.owner_comes =
        user_of_peer(*reinterpret_cast<const sockaddr_in*>(peer), impl.port) == impl.owner;  // NOLINT: the sockets API
    return impl.owner_comes || (!impl.token.empty() && impl.others < kPlacesOfOthers) ? MHD_YES : MHD_NO;
  }
  static void count(void* self, MHD_Connection*, void** is_owner, MHD_ConnectionNotificationCode event) {
    auto& impl = *static_cast<Impl*>(self);
    if (event == MHD_CONNECTION_NOTIFY_STARTED) *is_owner = impl.owner_comes ? self : nullptr;
    if (*is_owner == nullptr) impl.others += event == MHD_CONNECTION_NOTIFY_STARTED ? 1 : -1;
  }

  // Called when a request's header is there: with an answer now, its body is not read.
  static MHD_Result answer(void* self, MHD_Connection* connection, const char* path, const char* method, const char*,
                           const char*, std::size_t*, void**) {
    return send(connection, static_cast<Impl*>(self)->answer_to(connection, path, method));
  }
  Answer answer_to(MHD_Connection* connection, std::string_view path, std::string_view method) {
    if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD)
      return {MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n", "text/plain", {{"Allow", "GET, HEAD"}}};
    if (!is_loopback(value_of(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST)))
      return {MHD_HTTP_FORBIDDEN, "this page is for 127.0.0.1 and localhost\n"};
    const auto said = token_of(connection);
    const auto* visitor = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (said.empty() ? visitor->socket_context == nullptr : token.empty() || !equal_secrets(said, token))
      return {MHD_HTTP_FORBIDDEN, "the page's address, with its token, is in the run's output: live page: ...\n"};
    if (path == "/")  // nothing from elsewhere, and nothing that a record might smuggle in
      return {MHD_HTTP_OK,
              std::string(live_page()),
              "text/html; charset=utf-8",
              {{"Content-Security-Policy",
                "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                "frame-ancestors 'none'"},
               {"Referrer-Policy", "no-referrer"}}};
    if (path == "/records") {
      const auto asked = value_of(connection, MHD_GET_ARGUMENT_KIND, "after");
      std::int64_t after = 0;
      std::from_chars(asked.data(), asked.data() + asked.size(), after);  // what is no number asks for all
      return {MHD_HTTP_OK, live.from(after), "application/json"};
    }
    if (path == "/metrics") return {MHD_HTTP_OK, scrape(), "text/plain; version=0.0.4"};
    return {MHD_HTTP_NOT_FOUND, "there are /, /records and /metrics\n"};
  }
};

MetricsPage::MetricsPage(std::uint16_t port, const std::string& job_id, std::string token, uid_t owner, std::string run)
    : impl_(std::make_unique<Impl>(port, job_id, std::move(token), owner, std::move(run))) {
  impl_->add("troupe_run_info", "1, labelled with the job.", {{"job_id", job_id}}).Set(1);
  impl_->step = &impl_->add("troupe_step", "Optimizer steps done in the run.");
  impl_->epoch = &impl_->add("troupe_epoch", "Passes over the data, begun or done.");
  if (!impl_->listen()) {
    const int error = errno;
    throw Error(ErrorCode::unavailable, "metrics_port",
                "port " + std::to_string(port) + " of 127.0.0.1: " + std::strerror(error),
                "choose another --metrics_port, or 0 for none");
  }
}

MetricsPage::~MetricsPage() = default;

void MetricsPage::write(const MetricRecord& record) {
  impl_->live.add(record);
  impl_->step->Set(static_cast<double>(record.step));
  impl_->epoch->Set(static_cast<double>(record.epoch + 1));
  for (const auto& [metric, value] : record.values) {
    auto& gauge = impl_->gauges[metric];
    if (gauge == nullptr) gauge = &impl_->add(metric->prometheus, metric->help);
    gauge->Set(value);
  }
  const bool trains = record.kind == MetricRecord::Kind::train;
  for (auto& [name, gauge] : impl_->own) {
    if (trains && name.starts_with(kStrategyPrefix))
      gauge->Set(std::numeric_limits<double>::quiet_NaN());  // may be over
  }
  for (const auto& [name, value] : record.own) {
    auto& gauge = impl_->own[name];
    if (gauge == nullptr)
      gauge = &impl_->add("troupe_own_metric", "A metric of the program, or of its strategy.", {{"name", name}});
    gauge->Set(value);
  }
}

std::string MetricsPage::address() const {
  return "http://127.0.0.1:" + std::to_string(impl_->port) + "/" +
         (impl_->token.empty() ? "" : "?token=" + impl_->token);
}

std::string MetricsPage::records(std::int64_t after) const { return impl_->live.from(after); }

std::string MetricsPage::text() const { return impl_->scrape(); }

}  // namespace troupe
