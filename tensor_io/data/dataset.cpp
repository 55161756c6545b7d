#include "tensor_io/data/dataset.hpp"

#include <ATen/ops/tensor.h>

#include <vector>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/collate.hpp"

namespace troupe {
namespace {

NamedTensors fields_of(const at::Tensor& input, const at::Tensor& target, const NamedTensors& named) {
  NamedTensors fields;
  fields.reserve(2 + named.size());
  if (input.defined()) fields.emplace_back("input", input);
  if (target.defined()) fields.emplace_back("target", target);
  for (const auto& field : named) {
    if (field.second.defined()) fields.push_back(field);
  }
  return fields;
}

}  // namespace

NamedTensors Example::fields() const { return fields_of(input, target, named); }
NamedTensors Batch::fields() const { return fields_of(input, target, named); }

void Batch::set_fields(const NamedTensors& fields) {
  input = target = at::Tensor();
  named.clear();
  for (const auto& [name, tensor] : fields) {
    if (name == "input") {
      input = tensor;
    } else if (name == "target") {
      target = tensor;
    } else {
      named.emplace_back(name, tensor);
    }
  }
}

const at::Tensor& Batch::operator[](std::string_view name) const {
  if (name == "input" && input.defined()) return input;
  if (name == "target" && target.defined()) return target;
  for (const auto& [field, tensor] : named) {
    if (field == name) return tensor;
  }
  std::string names;
  for (const auto& [field, tensor] : fields()) names += (names.empty() ? "" : ", ") + field;
  throw Error(ErrorCode::usage, "batch",
              "it has no field " + std::string(name) + "; it has " + (names.empty() ? "none" : names),
              "ask for one of these, or add it to the data set's examples");
}

std::int64_t Batch::numel() const {
  if (index.defined()) return index.size(0);
  const auto there = fields();
  return there.empty() ? 0 : there.front().second.size(0);
}

Batch Dataset::collate(const std::vector<Example>& examples) const { return stack(examples, name()); }

Batch Dataset::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  std::vector<Example> examples;
  examples.reserve(indices.size());
  for (const auto index : indices) examples.emplace_back(get(index, context)).index = index;
  auto batch = collate(examples);
  batch.index = at::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()), at::kLong);
  return batch;
}

}  // namespace troupe
