#pragma once
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <cereal/archives/portable_binary.hpp>

#include "tensor_io/layout/named_tensors.hpp"

namespace troupe {

/// How a state of the program (Rank::state) is read and written, as tensors by name; the name is empty for a state that
/// is one tensor, or bytes.
struct OwnStateAccess {
  std::function<NamedTensors()> get;  ///< live ones, or bytes as (n,) u8
  /// Throws Error(mismatch) for values that a module can't take.
  std::function<void(const NamedTensors&)> set;
};

/// Parameters and buffers, under their names.
OwnStateAccess access_to_module(torch::nn::Module& module);
/// `value` keeps its memory if shape and dtype fit.
void assign_own_state(at::Tensor& value, const at::Tensor& from);
at::Tensor bytes_of_own_state(const std::string& text);
std::string text_of_own_state(const NamedTensors& tensors);

/// `state` is a tensor, a vector, map or NamedTensors of them, a module or its holder, or of a type that cereal
/// serialises. It must outlive the result.
template <class T>
OwnStateAccess access_to(T& state) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return {[&state] {
              return state.defined() ? NamedTensors{{"", state}} : NamedTensors{};
            },
            [&state](const NamedTensors& from) {
              if (from.empty()) return state.reset();
              assign_own_state(state, from.front().second);
            }};
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    return {[&state] {
              NamedTensors tensors;
              for (const auto& tensor : state) tensors.emplace_back(std::to_string(tensors.size()), tensor);
              return tensors;
            },
            [&state](const NamedTensors& from) {
              state.resize(from.size());
              for (const auto& [name, tensor] : from) assign_own_state(state.at(std::stoul(name)), tensor);
            }};
  } else if constexpr (std::is_same_v<T, std::map<std::string, at::Tensor>>) {
    return {[&state] { return NamedTensors(state.begin(), state.end()); },
            [&state](const NamedTensors& from) {
              std::erase_if(state, [&](const auto& entry) {
                return std::none_of(from.begin(), from.end(),
                                    [&](const auto& one) { return one.first == entry.first; });
              });
              for (const auto& [name, tensor] : from) assign_own_state(state[name], tensor);
            }};
  } else if constexpr (std::is_same_v<T, NamedTensors>) {
    return {[&state] { return state; },
            [&state](const NamedTensors& from) {
              auto before = std::exchange(state, {});
              for (const auto& [name, tensor] : from) {
                at::Tensor mine;
                for (auto& [known, memory] : before) {
                  if (known == name) mine = memory;
                }
                assign_own_state(mine, tensor);
                state.emplace_back(name, mine);
              }
            }};
  } else if constexpr (std::is_base_of_v<torch::nn::Module, T>) {
    return access_to_module(state);
  } else if constexpr (requires { state.ptr(); }) {
    return access_to_module(*state.ptr());
  } else {
    return {[&state] {
              std::ostringstream out;
              {
                cereal::PortableBinaryOutputArchive archive(out);
                archive(state);
              }
              return NamedTensors{{"", bytes_of_own_state(out.str())}};
            },
            [&state](const NamedTensors& from) {
              std::istringstream in(text_of_own_state(from));
              cereal::PortableBinaryInputArchive archive(in);
              archive(state);
            }};
  }
}

}  // namespace troupe
