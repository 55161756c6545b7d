#include "tensor_io/checkpoint/state_matching.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {

namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::string text = "(";
  for (const auto dimension : tensor.sizes()) text += (text.size() > 1 ? ", " : "") + std::to_string(dimension);
  return text + ")";
}

std::string describe_tensor(const at::Tensor& tensor) {
  return std::string(c10::toString(tensor.scalar_type())) + " " + shape_text(tensor);
}

bool alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

std::map<std::string_view, const at::Tensor*> by_name(const NamedTensors& tensors) {
  std::map<std::string_view, const at::Tensor*> found;
  for (const auto& [name, tensor] : tensors) found.emplace(name, &tensor);
  return found;
}

// Moves a missing and an extra name that can only mean each other to `renamed`.
void pair_renamed(StateDifference& difference, const std::map<std::string_view, const at::Tensor*>& saved,
                  const std::map<std::string_view, const at::Tensor*>& live) {
  auto count = [](const std::vector<std::string>& names, const std::map<std::string_view, const at::Tensor*>& tensors,
                  const at::Tensor& like) {
    return std::count_if(names.begin(), names.end(),
                         [&](const std::string& name) { return alike(*tensors.at(name), like); });
  };
  const auto missing = difference.missing, extra = difference.extra;
  if (missing.size() * extra.size() > 1'000'000) return;
  for (const auto& name : extra) {
    const auto& tensor = *saved.at(name);
    if (count(missing, live, tensor) != 1 || count(extra, saved, tensor) != 1) continue;
    const auto partner = std::find_if(difference.missing.begin(), difference.missing.end(),
                                      [&](const std::string& other) { return alike(*live.at(other), tensor); });
    difference.renamed.emplace_back(name, *partner);
    difference.missing.erase(partner);
    std::erase(difference.extra, name);
  }
}

template <class Items, class Text>
void add_first_three(std::string& text, const char* kind, const Items& items, Text&& text_of) {
  if (items.empty()) return;
  text += (text.empty() ? "" : "; ") + std::string(kind) + " ";
  const std::size_t shown = std::min<std::size_t>(items.size(), 3);
  for (std::size_t i = 0; i < shown; ++i) text += (i > 0 ? ", " : "") + text_of(items[i]);
  if (items.size() > shown) text += " and " + std::to_string(items.size() - shown) + " more";
}

}  // namespace

std::string StateDifference::describe() const {
  std::string text;
  add_first_three(text, "missing in the checkpoint:", missing, [](const std::string& name) { return printable(name); });
  add_first_three(text, "not in the program:", extra, [](const std::string& name) { return printable(name); });
  add_first_three(text, "renamed?", renamed,
                  [](const auto& names) { return printable(names.first) + " is now " + printable(names.second); });
  add_first_three(text, "different:", different, [](const std::string& what) { return what; });
  return text;
}

StateDifference compare_state(const NamedTensors& saved, const NamedTensors& live) {
  const auto saved_by_name = by_name(saved), live_by_name = by_name(live);
  StateDifference difference;
  for (const auto& [name, tensor] : live_by_name) {
    const auto found = saved_by_name.find(name);
    if (found == saved_by_name.end()) {
      difference.missing.emplace_back(name);
    } else if (!alike(*found->second, *tensor)) {
      auto what = printable(name) + " is " + describe_tensor(*found->second) + " in the checkpoint and " +
                  describe_tensor(*tensor) + " in the program";
      const auto sizes = found->second->sizes().vec();
      if (sizes.size() > 1 &&
          std::equal(sizes.rbegin(), sizes.rend(), tensor->sizes().begin(), tensor->sizes().end()) &&
          sizes != tensor->sizes().vec())
        what += " (transposed)";
      difference.different.push_back(std::move(what));
    }
  }
  for (const auto& [name, tensor] : saved_by_name) {
    if (!live_by_name.contains(name)) difference.extra.emplace_back(name);
  }
  pair_renamed(difference, saved_by_name, live_by_name);
  return difference;
}

NamedTensors with_prefix(const NamedTensors& tensors, std::string_view prefix) {
  NamedTensors found;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(found),
               [prefix](const auto& named) { return named.first.starts_with(prefix); });
  return found;
}

void copy_state(const NamedTensors& saved, const NamedTensors& live, const std::string& operation) {
  if (const auto difference = compare_state(saved, live); !difference.empty()) {
    throw Error(ErrorCode::mismatch, operation, difference.describe(),
                "build the model and the optimizer that the checkpoint was saved with, or resume from another one");
  }
  const auto sources = by_name(saved);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : live) {
    auto target = tensor.detach();  // a leaf that requires grad refuses to be written to in place
    target.copy_(*sources.at(name));
  }
}

}  // namespace troupe
