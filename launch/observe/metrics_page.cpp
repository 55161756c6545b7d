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

#include "tensor_io/error.hpp"

namespace troupe {

using namespace std::chrono_literals;

struct MetricsPage::Impl {
  prometheus::Registry registry;  // has a mutex of its own
  std::map<const MetricName*, prometheus::Gauge*> gauges;
  prometheus::Gauge *step = nullptr, *epoch = nullptr;
  httplib::Server server;
  std::thread thread;

  prometheus::Gauge& add(const char* name, const char* help, const prometheus::Labels& labels = {}) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
};

MetricsPage::MetricsPage(std::uint16_t port, const std::string& job_id) : impl_(std::make_unique<Impl>()) {
  impl_->add("troupe_run_info", "1, labelled with the job.", {{"job_id", job_id}}).Set(1);
  impl_->step = &impl_->add("troupe_step", "Optimizer steps done in the run.");
  impl_->epoch = &impl_->add("troupe_epoch", "Passes over the data, begun or done.");
  auto& server = impl_->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(1); };
  // Not the library's SO_REUSEPORT: with it a second run would share the port silently.
  server.set_socket_options([](auto socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_read_timeout(2s);
  server.set_write_timeout(2s);
  server.set_keep_alive_max_count(1);
  server.set_payload_max_length(1 << 10);
  server.Get("/metrics",
             [this](const httplib::Request&, httplib::Response& response) { response.set_content(text(), "text/plain; version=0.0.4"); });
  if (!server.bind_to_port("127.0.0.1", port)) {
    const int error = errno;
    throw Error(ErrorCode::unavailable, "metrics_port", "port " + std::to_string(port) + " of 127.0.0.1: " + std::strerror(error),
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
  impl_->step->Set(static_cast<double>(record.step));
  impl_->epoch->Set(static_cast<double>(record.epoch + 1));
  for (const auto& [metric, value] : record.values) {
    auto& gauge = impl_->gauges[metric];
    if (gauge == nullptr) gauge = &impl_->add(metric->prometheus, metric->help);
    gauge->Set(value);
  }
}

std::string MetricsPage::text() const { return prometheus::TextSerializer().Serialize(impl_->registry.Collect()); }

}  // namespace troupe
