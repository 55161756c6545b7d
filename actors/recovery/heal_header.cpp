#include "actors/recovery/heal_header.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {
namespace {

constexpr const char* kHeader = "the header that a donor sends before the heal";

[[noreturn]] void refuse(const std::string& cause) { throw Error(ErrorCode::bad_data, kHeader, cause); }

bool is_real(int dtype) {
  constexpr at::ScalarType kinds[] = {at::kByte, at::kChar,  at::kShort,  at::kInt,  at::kLong,
                                      at::kHalf, at::kFloat, at::kDouble, at::kBool, at::kBFloat16};
  return std::find(std::begin(kinds), std::end(kinds), static_cast<at::ScalarType>(dtype)) != std::end(kinds);
}

}  // namespace

std::string HealHeader::to_text() const {
  return nlohmann::json{
      {"strategy", strategy}, {"notes", notes}, {"loss_scale", loss_scale}, {"growth_tracker", growth_tracker}}
      .dump();
}

HealHeader HealHeader::of(std::string_view text) {
  double tracker = 0;
  auto header = read_bounded_json(text, kHeader, {.depth = 3}, [&tracker](const nlohmann::json& root) {
    tracker = root.at("growth_tracker").get<double>();
    return HealHeader{root.at("strategy").get<StateTexts>(), root.at("notes").get<StateTexts>(),
                      root.at("loss_scale").get<double>(), 0};
  });
  check_state_texts(header.strategy, kHeader, "'strategy'");
  check_state_texts(header.notes, kHeader, "'notes'");
  check_state_counters({{kLossScale, header.loss_scale}, {kLossScaleTracker, tracker}}, kHeader, "the counter");
  header.growth_tracker = static_cast<std::int64_t>(tracker);
  return header;
}

std::string shapes_of(const NamedTensors& tensors) {
  auto shapes = nlohmann::json::array();
  for (const auto& [name, tensor] : tensors)
    shapes.push_back({{"name", name},
                      {"shape", tensor.sizes().vec()},
                      {"dtype", static_cast<int>(tensor.scalar_type())},
                      {"on_device", !tensor.is_cpu()}});
  return shapes.dump();
}

NamedTensors zeros_of_shapes(std::string_view text, c10::Device device, std::int64_t most) {
  return read_bounded_json(text, kHeader, {.depth = 4}, [device, most](const nlohmann::json& shapes) mutable {
    if (!shapes.is_array()) refuse("it is not a list of tensors");
    NamedTensors tensors;
    for (const auto& entry : shapes) {
      const auto name = entry.at("name").get<std::string>();
      const auto& type = entry.at("dtype");
      if (!type.is_number_integer() || !is_real(type.get<int>())) refuse("'" + name + "' has an unknown type");
      const auto dtype = static_cast<at::ScalarType>(type.get<int>());
      auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
      std::vector<std::int64_t> shape;
      for (const auto& size : entry.at("shape")) {
        if (!size.is_number_integer()) refuse("the shape of '" + name + "' is not made of whole numbers");
        shape.push_back(size.get<std::int64_t>());
        if (shape.back() < 0 || shape.size() > 64 || __builtin_mul_overflow(bytes, shape.back(), &bytes))
          refuse("'" + name + "' has an impossible shape");
      }
      most -= bytes;
      if (most < 0) refuse("with '" + name + "' the tensors have more bytes than is possible");
      const auto& on_device = entry.at("on_device");
      if (!on_device.is_boolean()) refuse("'" + name + "' is neither on a device nor on the CPU");
      tensors.emplace_back(name, at::zeros(shape, at::device(on_device.get<bool>() ? device : at::kCPU).dtype(dtype)));
    }
    return tensors;
  });
}

}  // namespace troupe
