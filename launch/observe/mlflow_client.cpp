#include "launch/observe/mlflow_client.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "launch/observe/bounded_answer.hpp"
#include "launch/process/displayable.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

// The server's own limits for one log-batch.
constexpr std::size_t kMetricsOfCall = 1000, kParametersOfCall = 100, kTextOfParameter = 6000;

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

json pairs(const std::map<std::string, std::string>& texts) {
  json list = json::array();
  for (const auto& [key, value] : texts) list.push_back({{"key", key}, {"value", value.substr(0, kTextOfParameter)}});
  return list;
}

// Protobuf's JSON has words for what JSON has no numbers for.
json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

// In the server's own words; of a page that is no answer of MLflow its begin.
std::string said(const httplib::Response& answer, const json& body) {
  const auto message = body.is_object() && body.contains("message") && body["message"].is_string()
                           ? body["message"].get<std::string>()
                           : answer.body;
  return message.empty() ? "" : ", it says: " + displayable(message, 200);
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

bool is_set(const char* name) {
  const char* value = variable(name);
  return value != nullptr && std::string_view(value) == "1";
}

// Of a server without its scheme, HOST:PORT. A name may lead anywhere, only localhost does not.
bool is_this_machine(std::string_view server) {
  const auto host = std::string(server.starts_with("[") ? server.substr(0, server.find(']') + 1)
                                                        : server.substr(0, server.find(':')));
  in_addr address{};
  return host == "localhost" || host == "[::1]" ||
         (::inet_pton(AF_INET, host.c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

// Ends no text in a filter, whose strings have no escapes.
std::string percent_encoded(const std::string& text) {
  constexpr std::string_view kPlain = "-._:/", kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const unsigned char c : text) {
    if (std::isalnum(c) || kPlain.find(static_cast<char>(c)) != kPlain.npos) {
      encoded += static_cast<char>(c);
    } else {
      encoded += {'%', kDigits[c >> 4], kDigits[c & 15]};
    }
  }
  return encoded;
}

}  // namespace

struct MlflowClient::Connection {
  std::string uri, prefix;
  httplib::Client client;
  std::atomic<bool> stopped{false};

  Connection(const std::string& all, const std::string& server)
      : uri(all), prefix(all.substr(server.size())), client(server) {
    while (prefix.ends_with('/')) prefix.pop_back();
    client.set_connection_timeout(2s);
    client.set_read_timeout(5s);
    client.set_write_timeout(5s);
    client.set_keep_alive(true);
    if (const char* token = variable("MLFLOW_TRACKING_TOKEN")) {
      client.set_bearer_token_auth(token);
    } else if (const char* user = variable("MLFLOW_TRACKING_USERNAME")) {
      const char* password = variable("MLFLOW_TRACKING_PASSWORD");
      client.set_basic_auth(user, password == nullptr ? "" : password);
    }
  }

  json answer(const std::string& call, const httplib::Result& result, bool may_be_missing) const {
    if (stopped) throw Error(ErrorCode::interrupted, uri, "the run is over");
    if (result.error() == httplib::Error::Canceled)
      throw Error(ErrorCode::unavailable, uri,
                  call + ": its answer is longer than " + std::to_string(kMostBytes >> 20) + " MiB",
                  "is this an MLflow tracking server?");
    if (!result)
      throw Error(ErrorCode::unavailable, uri, httplib::to_string(result.error()),
                  "start the server, or leave --mlflow_uri out");
    auto body = json::parse(result->body, nullptr, /*allow_exceptions=*/false);
    if (result->status == 200 && body.is_object()) return body;
    const auto field = body.is_object() ? body.find("error_code") : body.end();
    const auto code = body.is_object() && field != body.end() && field->is_string() ? field->get<std::string>() : "";
    if (may_be_missing && code == "RESOURCE_DOES_NOT_EXIST") return nullptr;
    std::string remedy = code.empty() ? "is this an MLflow tracking server?" : "";
    if (result->status == 401 || result->status == 403)
      remedy = "set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD";
    throw Error(
        ErrorCode::unavailable, uri,
        call + ": status " + std::to_string(result->status) + (code.empty() ? "" : " " + code) + said(*result, body),
        remedy);
  }
  json post(const std::string& call, const json& body) {
    httplib::Request request;
    request.method = "POST";
    request.path = path_of(call);
    request.headers = {{"Content-Type", "application/json"}};
    request.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
    return answer(call, bounded_answer(client, request, kMostBytes), false);
  }
  json get(const std::string& call, const httplib::Params& parameters) {
    httplib::Request request;
    request.method = "GET";
    request.path = httplib::append_query_params(path_of(call), parameters);
    return answer(call, bounded_answer(client, request, kMostBytes), true);
  }
  std::string path_of(const std::string& call) const { return prefix + "/api/2.0/mlflow/" + call; }
};

std::string MlflowClient::server_of(const std::string& uri) {
  const auto scheme = uri.find("://");
  auto server = uri.substr(0, uri.find('/', scheme == std::string::npos ? 0 : scheme + 3));
  if (!server.starts_with("http://") && !server.starts_with("https://"))
    throw Error(ErrorCode::usage, "mlflow_uri", "'" + displayable(uri, 200) + "' is not an http:// or https:// address",
                "for example http://127.0.0.1:5000");
  if (server.find('@') != std::string::npos)
    throw Error(ErrorCode::usage, "mlflow_uri", "it would be written to the run's folder, password and all",
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead");
  for (const char* secret : {"MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"}) {
    if (variable(secret) != nullptr && server.starts_with("http://") && !is_this_machine(server.substr(7)) &&
        !is_set("TROUPE_INSECURE_MLFLOW"))
      throw Error(ErrorCode::usage, "mlflow_uri",
                  secret + std::string(" would go to ") + displayable(server, 200) + " in plain text",
                  "give its https:// address; on a network that you trust set TROUPE_INSECURE_MLFLOW=1");
  }
  return server;
}

MlflowClient::MlflowClient(MlflowRunInfo info)
    : info_(std::move(info)), connection_(std::make_unique<Connection>(info_.uri, server_of(info_.uri))) {}

MlflowClient::~MlflowClient() = default;

void MlflowClient::stop() noexcept {
  connection_->stopped = true;
  connection_->client.stop();
}

std::string MlflowClient::find_experiment() {
  const auto found = connection_->get("experiments/get-by-name", {{"experiment_name", info_.experiment}});
  if (found.is_null()) return connection_->post("experiments/create", {{"name", info_.experiment}}).at("experiment_id");
  return found.at("experiment").at("experiment_id");
}

MlflowClient::FoundRun MlflowClient::find_run(const std::string& experiment) {
  const auto run_id = percent_encoded(info_.run_id);
  const json query{
      {"experiment_ids", {experiment}}, {"filter", "tags.`troupe.run_id` = '" + run_id + "'"}, {"max_results", 1}};
  const auto answer = connection_->post("runs/search", query);
  if (answer.contains("runs") && !answer["runs"].empty()) {
    const auto& run = answer["runs"][0];
    FoundRun found{run.at("info").at("run_id"), {}};
    for (const auto& parameter : run.value("data", json::object()).value("params", json::array()))
      found.parameters[parameter.at("key")] = parameter.at("value");
    connection_->post("runs/update", {{"run_id", found.id}, {"status", "RUNNING"}});
    return found;
  }
  auto tags = info_.tags;
  tags["troupe.run_id"] = run_id;
  const json run{
      {"experiment_id", experiment}, {"start_time", now_ms()}, {"run_name", info_.run_name}, {"tags", pairs(tags)}};
  return {connection_->post("runs/create", run).at("run").at("info").at("run_id"), {}};
}

void MlflowClient::begin() {
  if (!run_id_.empty()) return;
  try {
    const auto run = find_run(find_experiment());
    std::map<std::string, std::string> news, changed;
    for (const auto& [name, value] : info_.parameters) {
      const auto before = run.parameters.find(name);
      if (before == run.parameters.end()) {
        news[name] = value;
      } else if (before->second != value.substr(0, kTextOfParameter)) {
        changed["now." + name] = value;
      }
    }
    const auto parameters = pairs(news);
    for (std::size_t i = 0; i < parameters.size(); i += kParametersOfCall) {
      const auto end =
          parameters.begin() + static_cast<std::ptrdiff_t>(std::min(parameters.size(), i + kParametersOfCall));
      connection_->post("runs/log-batch", {{"run_id", run.id},
                                           {"params", json(parameters.begin() + static_cast<std::ptrdiff_t>(i), end)}});
    }
    if (!changed.empty()) connection_->post("runs/log-batch", {{"run_id", run.id}, {"tags", pairs(changed)}});
    run_id_ = run.id;
  } catch (const json::exception& error) {
    throw Error(ErrorCode::unavailable, info_.uri, error.what(), "is this an MLflow tracking server?");
  }
}

void MlflowClient::log(const std::vector<MetricRecord>& records) {
  json metrics = json::array();
  const auto send = [&] {
    if (!metrics.empty()) connection_->post("runs/log-batch", {{"run_id", run_id_}, {"metrics", metrics}});
    metrics.clear();
  };
  for (const auto& record : records) {
    const auto add = [&](const std::string& key, double value) {
      if (metrics.size() == kMetricsOfCall) send();
      metrics.push_back({{"key", key},
                         {"value", number(value)},
                         {"timestamp", static_cast<std::int64_t>(record.wall_time * 1000)},
                         {"step", record.step}});
    };
    for (const auto& [metric, value] : record.values) add(mlflow_name(*metric), value);
    for (const auto& [name, value] : record.own) add(name, value);
  }
  send();
}

void MlflowClient::end(const std::string& status) {
  connection_->post("runs/update", {{"run_id", run_id_}, {"status", status}, {"end_time", now_ms()}});
}

}  // namespace troupe
