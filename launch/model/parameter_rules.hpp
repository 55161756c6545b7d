#pragma once
#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tensor_io/optimizer/optimizer.hpp"
#include "tensor_io/optimizer/optimizer_options.hpp"

namespace torch::nn {
class Module;
}

namespace troupe {

/// Selects parameters by a text, or by a function of name and tensor. The text is a list with commas between its words:
///
/// norms    the parameters of modules whose class is named ...Norm, ...Norm1d and so on, but not of their children:
///          LibTorch's, Troupe's and your own
/// biases   those of one dimension that are named bias
/// a glob   of whole names: `*` is any text, dots included, `?` any one character; it must match a parameter
class ParameterMatch {
 public:
  using Test = std::function<bool(const std::string& name, const at::Tensor& parameter)>;

  ParameterMatch() = default;
  ParameterMatch(const char* text) : text_(text) {}
  ParameterMatch(std::string text) : text_(std::move(text)) {}
  template <class Given>
  requires std::constructible_from<Test, Given> &&
      (!std::constructible_from<std::string, Given>)ParameterMatch(Given test)
      : test_(std::move(test)) {}

  /// The text; empty if there is a function.
  const std::string& text() const noexcept { return text_; }
  const Test& test() const noexcept { return test_; }  ///< empty: there is a text

 private:
  std::string text_;
  Test test_;
};

/// Settings for the parameters that it matches. Of several rules that match one, the first counts.
struct ParameterRule {
  ParameterMatch match;
  double lr_scale = 1;       ///< multiplies the scheduled rate
  double weight_decay = -1;  ///< negative: the config's, or none by no_decay
};
/// Rules in the order in which they are tried.
using ParameterRules = std::vector<ParameterRule>;

/// The parameters that require a gradient, in groups by `rules` and the options' no_decay, for make_optimizer. A
/// parameter of several names is matched by any of them. Throws Error(usage) for a glob or a rule that matches no
/// parameter, and for an invalid rate or decay.
std::vector<ParameterGroup> parameter_groups(const torch::nn::Module& model, const OptimizerOptions& options,
                                             const ParameterRules& rules = {});

}  // namespace troupe
