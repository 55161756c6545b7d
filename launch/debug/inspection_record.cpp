#include "launch/debug/inspection_record.hpp"

#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tensor_io/base/error.hpp"

namespace troupe {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InspectedTensor, name, shape, dtype, device, dense, requires_grad, buffer, finite,
                                   digest)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InspectedGradient, name, values)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InspectedPace, step_ms, own_ms, exposed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InspectedGradients, step, local, whole, unused)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InspectionRecord, rank, world_size, data_rank, strategy, comparable, device,
                                   settings, put_aside, keeps_checkpoints, model, buffers_at_end, batch_norms, dropouts,
                                   batch, samples, loss, losses, pace, gradients, ended)

// What is not finite is null in JSON, which reads back as no number.
std::string InspectionRecord::to_json() const {
  auto copy = *this;
  const auto tame = [](double& value) {
    if (!(value - value == 0)) value = kNotFinite;
  };
  for (auto& value : copy.losses) tame(value);
  for (auto* list : {&copy.gradients.local, &copy.gradients.whole}) {
    for (auto& gradient : *list) {
      for (auto& value : gradient.values) tame(value);
    }
  }
  return nlohmann::json(copy).dump();
}

InspectionRecord InspectionRecord::read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  try {
    return nlohmann::json::parse(text.str()).get<InspectionRecord>();
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::bad_data, path, error.what(), "build the program and troupe from the same version");
  }
}

}  // namespace troupe
