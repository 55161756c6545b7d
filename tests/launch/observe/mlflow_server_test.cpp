// An MLflow server that is hostile, or too far away for a password in plain text.
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "launch/observe/mlflow_client.hpp"
#include "tensor_io/base/error.hpp"
#include "tests/support/launch.hpp"

using namespace troupe;

namespace {

/// A server of loopback that answers until it is destroyed.
class Serving {
 public:
  explicit Serving(httplib::Server& server)
      : server_(server), port_(server.bind_to_any_port("127.0.0.1")), thread_([&] { server_.listen_after_bind(); }) {}
  ~Serving() {
    server_.stop();
    thread_.join();
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  std::string uri() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  httplib::Server& server_;
  const int port_;
  std::thread thread_;
};

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

std::string failure_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("[K04] an MLflow server's answer is read up to a bound") {
  httplib::Server server;
  std::size_t sent = 0;
  const std::string block(1 << 20, ' ');
  server.Get("/api/2.0/mlflow/experiments/get-by-name", [&](const httplib::Request&, httplib::Response& response) {
    response.set_chunked_content_provider("application/json", [&](std::size_t, httplib::DataSink& sink) {
      if (!sink.is_writable() || sent > 8 * MlflowClient::kMostBytes) return false;
      sink.write(block.data(), block.size());
      sent += block.size();
      return true;
    });
  });
  const Serving serving(server);
  MlflowClient client({serving.uri(), "Default", "run", "job"});
  CHECK_THAT(failure_of([&] { client.begin(); }), Catch::Contains("get-by-name: its answer is longer than 16 MiB"));
  CHECK(sent < 4 * MlflowClient::kMostBytes);
}

TEST_CASE("[K04] a run's id ends no text in a filter for an MLflow server, whatever is in it") {
  httplib::Server server;
  std::string filter, tag;
  server.Get("/api/2.0/mlflow/experiments/get-by-name", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(R"({"experiment":{"experiment_id":"1"}})", "application/json");
  });
  server.Post("/api/2.0/mlflow/runs/search", [&](const httplib::Request& request, httplib::Response& response) {
    filter = nlohmann::json::parse(request.body)["filter"];
    response.set_content("{}", "application/json");
  });
  server.Post("/api/2.0/mlflow/runs/create", [&](const httplib::Request& request, httplib::Response& response) {
    tag = nlohmann::json::parse(request.body)["tags"][0]["value"];
    response.set_content(R"({"run":{"info":{"run_id":"r1"}}})", "application/json");
  });
  const Serving serving(server);
  MlflowClient({serving.uri(), "Default", "run", "a' OR name != \"\\'%27-7"}).begin();
  const std::string id = "a%27%20OR%20name%20%21%3D%20%22%5C%27%2527-7";
  CHECK(filter == "tags.`troupe.run_id` = '" + id + "'");
  CHECK(tag == id);
}

TEST_CASE("[K04] a password or token for an MLflow server goes to other hosts over https alone, unless asked for") {
  for (const char* secret : {"MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"}) {
    INFO(secret);
    CHECK(failure_of([] { MlflowClient::server_of("http://mlflow.example:5000"); }).empty());
    const Variable variable(secret, "very-secret");
    for (const char* far : {"http://mlflow.example:5000", "http://10.0.0.1", "http://127.0.0.1.example/",
                            "http://localhost.example", "http://127.example:80/prefix", "http://[fe80::1]:5000"}) {
      INFO(far);
      const auto failure = failure_of([&] { MlflowClient({far}); });
      CHECK_THAT(failure, Catch::Contains(secret + std::string(" would go to http://")) &&
                              Catch::Contains("TROUPE_INSECURE_MLFLOW=1") && !Catch::Contains("very-secret"));
      const Variable trusted("TROUPE_INSECURE_MLFLOW", "1");
      CHECK(failure_of([&] { MlflowClient::server_of(far); }).empty());
    }
    const Variable no("TROUPE_INSECURE_MLFLOW", "0");
    CHECK_FALSE(failure_of([] { MlflowClient::server_of("http://mlflow.example"); }).empty());
    for (const char* fine : {"https://mlflow.example", "http://127.0.0.1:5000", "http://127.9.9.9/prefix",
                             "http://localhost", "http://localhost:5000", "http://[::1]:5000"}) {
      INFO(fine);
      CHECK(failure_of([&] { MlflowClient::server_of(fine); }).empty());
    }
  }
}

TEST_CASE("[K04] a run whose MLflow token would go out in plain text is refused before its first step") {
  testing::Launch launch(2, {"--epochs", "1", "--log_interval", "1", "--mlflow_uri", "http://192.0.2.1:5000"},
                         {"--no-recovery"}, {{"MLFLOW_TRACKING_TOKEN", "very-secret"}});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 2);
  CHECK_THAT(done.output, Catch::Contains("mlflow_uri: MLFLOW_TRACKING_TOKEN would go to http://192.0.2.1:5000") &&
                              !Catch::Contains("very-secret") && !Catch::Contains("step 1/"));
}
