#pragma once
#include <c10/util/FunctionRef.h>
#include <torch/types.h>

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe {

using TensorVisitor = c10::function_ref<void(at::Tensor&)>;

/// Finds the tensors inside a value, in order: a tensor, and optional, vector, array, pair, tuple, map of such. A
/// struct of one's own takes part by a specialisation:
///
///     template <>
///     struct troupe::TensorsIn<MyState> {
///       static constexpr bool any = true;
///       static void visit(MyState& state, troupe::TensorVisitor visit) { visit(state.hidden); visit(state.cell); }
///     };
template <class T>
struct TensorsIn {
  static constexpr bool any = false;
  static void visit(T&, TensorVisitor) {}
};

template <>
struct TensorsIn<at::Tensor> {
  static constexpr bool any = true;
  static void visit(at::Tensor& tensor, TensorVisitor visit) { visit(tensor); }
};

template <class T>
struct TensorsIn<std::optional<T>> {
  static constexpr bool any = TensorsIn<T>::any;
  static void visit(std::optional<T>& value, TensorVisitor visit) {
    if (value) TensorsIn<T>::visit(*value, visit);
  }
};

/// Of a container that is a range of T.
template <class Range, class T>
struct TensorsInRange {
  static constexpr bool any = TensorsIn<T>::any;
  static void visit(Range& range, TensorVisitor visit) {
    if constexpr (any) {
      for (auto& value : range) TensorsIn<T>::visit(value, visit);
    }
  }
};
template <class T>
struct TensorsIn<std::vector<T>> : TensorsInRange<std::vector<T>, T> {};
template <class T, std::size_t N>
struct TensorsIn<std::array<T, N>> : TensorsInRange<std::array<T, N>, T> {};

/// Of a container from keys to T.
template <class Map, class T>
struct TensorsInMap {
  static constexpr bool any = TensorsIn<T>::any;
  static void visit(Map& map, TensorVisitor visit) {
    if constexpr (any) {
      for (auto& [key, value] : map) TensorsIn<T>::visit(value, visit);
    }
  }
};
template <class Key, class T>
struct TensorsIn<std::map<Key, T>> : TensorsInMap<std::map<Key, T>, T> {};
template <class Key, class T>
struct TensorsIn<std::unordered_map<Key, T>> : TensorsInMap<std::unordered_map<Key, T>, T> {};

template <class... Ts>
struct TensorsIn<std::tuple<Ts...>> {
  static constexpr bool any = (TensorsIn<Ts>::any || ...);
  static void visit(std::tuple<Ts...>& values, TensorVisitor visit) {
    std::apply([&](auto&... value) { (TensorsIn<Ts>::visit(value, visit), ...); }, values);
  }
};
template <class First, class Second>
struct TensorsIn<std::pair<First, Second>> {
  static constexpr bool any = TensorsIn<First>::any || TensorsIn<Second>::any;
  static void visit(std::pair<First, Second>& values, TensorVisitor visit) {
    TensorsIn<First>::visit(values.first, visit);
    TensorsIn<Second>::visit(values.second, visit);
  }
};

}  // namespace troupe
