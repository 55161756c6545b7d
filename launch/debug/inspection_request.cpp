#include "launch/debug/inspection_request.hpp"

#include <algorithm>
#include <cstdlib>

#include <nlohmann/json.hpp>

namespace troupe {

constexpr double kLossScale = 1024;        // small enough for the first step to be applied
constexpr double kCollectiveTimeout = 20;  // s: ranks that wait for each other in vain are to say so soon

std::string InspectionRequest::to_text() const {
  return nlohmann::json{{"folder", folder},   {"ranks", ranks},         {"steps", steps},
                        {"seconds", seconds}, {"gradients", gradients}, {"draw", draw}}
      .dump();
}

std::optional<InspectionRequest> inspection_request() {
  const char* text = std::getenv(kInspectVariable);
  if (text == nullptr) return std::nullopt;
  try {
    const auto json = nlohmann::json::parse(text);
    InspectionRequest request;
    json.at("folder").get_to(request.folder);
    json.at("ranks").get_to(request.ranks);
    json.at("steps").get_to(request.steps);
    json.at("seconds").get_to(request.seconds);
    json.at("gradients").get_to(request.gradients);
    json.at("draw").get_to(request.draw);
    return request;
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::usage, kInspectVariable, "troupe debug sets it, and this value is of another version",
                "unset it");
  }
}

std::map<std::string, std::string> make_harmless(Config& config, const InspectionRequest& request) {
  std::map<std::string, std::string> before;
  if (!config.resume.empty()) before["resume"] = config.resume;
  config.run_dir.clear();
  config.checkpoint_dir.clear();
  config.resume.clear();
  config.save_every = -1;
  config.tensorboard = false;
  config.progress_bar = false;
  config.metrics_port = 0;
  config.mlflow_uri.clear();
  config.profile = "off";
  config.chaos.clear();
  config.ranks = 1;
  if (config.threads == 0) config.threads = 1;  // as where there are several ranks: steps are to be compared
  config.validate_every = 0;
  config.collective_timeout = std::min(config.collective_timeout, kCollectiveTimeout);
  if (request.ranks == 1) {  // what is set for the ranks of a job
    config.balance = "equal";
    config.mesh.clear();
    config.fsdp_shard_size = 0;
  }
  if (!request.gradients) return before;
  config.early_update = false;  // the gradients would be gone
  config.clip_norm = 0;         // it would hide another size of theirs
  config.cuda_graphs = false;   // gradients are looked at within backward
  config.loss_scale_init = std::min(config.loss_scale_init, kLossScale);
  return before;
}

}  // namespace troupe
