#include "launch/observe/metrics_page.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include <httplib.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <charconv>

#include "launch/observe/live_page.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

using namespace std::chrono_literals;

namespace {

// A Host header, with a port or without. Prometheus and browsers send one.
bool is_loopback(const std::string& host) {
  const auto name = host.starts_with("[") ? host.substr(0, host.find(']') + 1) : host.substr(0, host.find(':'));
  return name.empty() || name == "127.0.0.1" || name == "localhost" || name == "[::1]";
}

}  // namespace

struct MetricsPage::Impl {
  prometheus::Registry registry;  // has a mutex of its own
  std::map<const MetricName*, prometheus::Gauge*> gauges;
  prometheus::Gauge *step = nullptr, *epoch = nullptr;
  LiveRecords live;
  httplib::Server server;
  std::thread thread;

  explicit Impl(const std::string& job_id) : live(job_id) {}

  prometheus::Gauge& add(const char* name, const char* help, const prometheus::Labels& labels = {}) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
};

MetricsPage::MetricsPage(std::uint16_t port, const std::string& job_id) : impl_(std::make_unique<Impl>(job_id)) {
  impl_->add("troupe_run_info", "1, labelled with the job.", {{"job_id", job_id}}).Set(1);
  impl_->step = &impl_->add("troupe_step", "Optimizer steps done in the run.");
  impl_->epoch = &impl_->add("troupe_epoch", "Passes over the data, begun or done.");
  auto& server = impl_->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(3); };
  // Not the library's SO_REUSEPORT: with it a second run would share the port silently.
  server.set_socket_options([](auto socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_read_timeout(2s);
  server.set_write_timeout(2s);
  server.set_keep_alive_max_count(1);
  server.set_payload_max_length(1 << 10);
  server.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Cache-Control", "no-store");
    if (is_loopback(request.get_header_value("Host"))) return httplib::Server::HandlerResponse::Unhandled;
    response.status = 403;
    response.set_content("this page is for 127.0.0.1 and localhost\n", "text/plain");
    return httplib::Server::HandlerResponse::Handled;
  });
  server.Get("/", [](const httplib::Request&, httplib::Response& response) {
    // Nothing from elsewhere, and nothing that a record might smuggle in.
    response.set_header("Content-Security-Policy",
                        "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src "
                        "'unsafe-inline'; frame-ancestors 'none'");
    response.set_content(live_page().data(), live_page().size(), "text/html; charset=utf-8");
  });
  server.Get("/records", [this](const httplib::Request& request, httplib::Response& response) {
    const auto asked = request.get_param_value("after");
    std::int64_t after = 0;
    std::from_chars(asked.data(), asked.data() + asked.size(), after);  // what is no number asks for all
    response.set_content(records(after), "application/json");
  });
  server.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(text(), "text/plain; version=0.0.4");
  });
  if (!server.bind_to_port("127.0.0.1", port)) {
    const int error = errno;
    throw Error(ErrorCode::unavailable, "metrics_port",
                "port " + std::to_string(port) + " of 127.0.0.1: " + std::strerror(error),
                "choose another --metrics_port, or 0 for none");
  }
  impl_->thread = std::thread([this] { impl_->server.listen_after_bind(); });
}

MetricsPage::~MetricsPage() {
  // stop() has no effect on a server that is not running yet.
  const auto deadline = std::chrono::steady_clock::now() + 2s;
  while (!impl_->server.is_running() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
  impl_->server.stop();
  impl_->thread.join();
}

void MetricsPage::write(const MetricRecord& record) {
  impl_->live.add(record);
  impl_->step->Set(static_cast<double>(record.step));
  impl_->epoch->Set(static_cast<double>(record.epoch + 1));
  for (const auto& [metric, value] : record.values) {
    auto& gauge = impl_->gauges[metric];
    if (gauge == nullptr) gauge = &impl_->add(metric->prometheus, metric->help);
    gauge->Set(value);
  }
}

std::string MetricsPage::records(std::int64_t after) const { return impl_->live.from(after); }

std::string MetricsPage::text() const { return prometheus::TextSerializer().Serialize(impl_->registry.Collect()); }

}  // namespace troupe
