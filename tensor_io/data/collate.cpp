#include "tensor_io/data/collate.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

/// One field of all samples.
struct Column {
  std::string name;
  std::vector<at::Tensor> tensors;
};

std::string names_of(const NamedTensors& fields) {
  std::string names;
  for (const auto& [name, tensor] : fields) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none" : names;
}

/// Checks what both ways to collate want: the same names and dtypes, each once.
class Columns {
 public:
  Columns(const std::vector<Example>& examples, const std::string& dataset) : examples_(examples), dataset_(dataset) {
    if (examples.empty())
      throw Error(ErrorCode::usage, dataset, "collate was given no samples", "give it at least one");
    first_ = examples.front().fields();
    if (first_.empty())
      throw Error(ErrorCode::usage, dataset, sample(0) + " has no tensor",
                  "let get fill at least one: input, target or a named one");
    std::set<std::string_view> seen;
    for (const auto& [name, tensor] : first_) {
      if (!seen.insert(name).second) refuse(name, sample(0) + " has two of this name", "rename one of them");
      columns_.push_back({name, {}});
    }
    for (std::size_t i = 0; i < examples.size(); ++i) add(i);
  }

  const std::vector<Column>& all() const { return columns_; }
  bool have(const std::string& name) const {
    return std::any_of(first_.begin(), first_.end(), [&](const auto& field) { return field.first == name; });
  }
  std::string names() const { return names_of(first_); }
  [[noreturn]] void refuse(const std::string& field, const std::string& why, const std::string& remedy) const {
    throw Error(ErrorCode::usage, dataset_, "field " + field + ": " + why, remedy);
  }
  [[noreturn]] void refuse_shape(const Column& column, std::size_t i, const std::string& remedy) const {
    refuse(column.name,
           c10::str(sample(i), " has the shape ", column.tensors[i].sizes(), ", ", sample(0), " has ",
                    column.tensors[0].sizes()),
           remedy);
  }

 private:
  void add(std::size_t i) {
    const auto fields = examples_[i].fields();
    const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
    if (!std::equal(fields.begin(), fields.end(), first_.begin(), first_.end(), same)) {
      throw Error(ErrorCode::usage, dataset_,
                  sample(i) + " has the fields " + names_of(fields) + ", " + sample(0) + " has " + names(),
                  "let get return the same fields in the same order for each sample");
    }
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const auto& [name, tensor] = fields[f];
      const auto dtype = first_[f].second.scalar_type();
      if (tensor.scalar_type() != dtype) {
        refuse(name, c10::str(sample(i), " is ", tensor.scalar_type(), ", ", sample(0), " is ", dtype),
               "let get return one dtype");
      }
      columns_[f].tensors.push_back(tensor);
    }
  }
  std::string sample(std::size_t i) const {
    const auto index = examples_[i].index;
    return index >= 0 ? "sample " + std::to_string(index) : "sample " + std::to_string(i) + " of the batch";
  }

  const std::vector<Example>& examples_;
  const std::string& dataset_;
  NamedTensors first_;
  std::vector<Column> columns_;
};

std::int64_t longest_of(const Column& column) {
  std::int64_t longest = 0;
  for (const auto& tensor : column.tensors) longest = std::max(longest, tensor.size(0));
  return longest;
}

at::Tensor padded(const Column& column, double value) {
  const auto& first = column.tensors.front();
  auto shape = first.sizes().vec();
  shape.front() = longest_of(column);
  shape.insert(shape.begin(), static_cast<std::int64_t>(column.tensors.size()));
  auto all = at::full(shape, value, first.options());
  for (std::size_t i = 0; i < column.tensors.size(); ++i)
    all[static_cast<std::int64_t>(i)].narrow(0, 0, column.tensors[i].size(0)).copy_(column.tensors[i]);
  return all;
}

at::Tensor mask_of(const Column& column) {
  const auto n = static_cast<std::int64_t>(column.tensors.size());
  auto mask = at::zeros({n, longest_of(column)}, column.tensors.front().options().dtype(at::kBool));
  for (std::int64_t i = 0; i < n; ++i)
    mask[i].narrow(0, 0, column.tensors[static_cast<std::size_t>(i)].size(0)).fill_(true);
  return mask;
}

bool can_hold(at::ScalarType dtype, double value) {
  return !at::isIntegralType(dtype, /*includeBool=*/true) ||
         at::scalar_tensor(value, at::kDouble).to(dtype).to(at::kDouble).item<double>() == value;
}

}  // namespace

Batch stack(const std::vector<Example>& examples, const std::string& dataset) {
  const Columns columns(examples, dataset);
  NamedTensors fields;
  for (const auto& column : columns.all()) {
    for (std::size_t i = 1; i < column.tensors.size(); ++i) {
      if (column.tensors[i].sizes() != column.tensors[0].sizes())
        columns.refuse_shape(column, i, "for sequences of unequal lengths let collate return pad_to_longest(examples)");
    }
    fields.emplace_back(column.name, at::stack(column.tensors));
  }
  Batch batch;
  batch.set_fields(fields);
  return batch;
}

Batch pad_to_longest(const std::vector<Example>& examples, const PadOptions& options, const std::string& dataset) {
  const Columns columns(examples, dataset);
  const auto& of_mask = options.mask_of.empty() ? columns.all().front().name : options.mask_of;
  const auto known = [&](const std::string& name, const char* option) {
    if (!columns.have(name))
      columns.refuse(name, std::string(option) + " names it, and the samples have " + columns.names(),
                     "name one of those");
  };
  for (const auto& [name, value] : options.values) known(name, "PadOptions::values");
  known(of_mask, "PadOptions::mask_of");
  if (columns.have(options.mask))
    columns.refuse(options.mask, "the samples have a mask of this name",
                   "set PadOptions::mask to \"\", or to another name");

  NamedTensors fields;
  at::Tensor mask;
  for (const auto& column : columns.all()) {
    const auto& first = column.tensors.front();
    const auto found = options.values.find(column.name);
    const auto value = found == options.values.end() ? 0 : found->second;
    const bool has_mask = !options.mask.empty() && column.name == of_mask;
    if (first.dim() == 0 && (has_mask || found != options.values.end())) {
      columns.refuse(column.name, "its tensors have no dimension that could be padded",
                     has_mask ? "set PadOptions::mask_of to a field that is padded, or mask to \"\""
                              : "leave it out of PadOptions::values: it is stacked");
    }
    if (!can_hold(first.scalar_type(), value))
      columns.refuse(column.name, c10::str(first.scalar_type(), " can't hold ", value), "give another padding value");
    for (std::size_t i = 1; i < column.tensors.size(); ++i) {
      const auto& other = column.tensors[i];
      if (other.dim() != first.dim() || (first.dim() > 0 && other.sizes().slice(1) != first.sizes().slice(1)))
        columns.refuse_shape(column, i, "only the first dimension is padded: make the others equal in get");
    }
    fields.emplace_back(column.name, first.dim() == 0 ? at::stack(column.tensors) : padded(column, value));
    if (has_mask) mask = mask_of(column);
  }
  if (mask.defined()) fields.emplace_back(options.mask, mask);
  Batch batch;
  batch.set_fields(fields);
  return batch;
}

}  // namespace troupe
