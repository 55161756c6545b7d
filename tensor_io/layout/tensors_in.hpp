#pragma once
#include <c10/util/FunctionRef.h>
#include <torch/types.h>

#include <concepts>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>

namespace troupe {

using TensorVisitor = c10::function_ref<void(at::Tensor&)>;

/// Finds the tensors inside a value, in order: a tensor, and optional, pair, tuple, map, vector or another container of
/// such. Your own struct takes part by a specialisation:
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

/// Containers that give references: to values, or to a map's pairs. Not a path or a JSON value, which consist of their
/// like without end.
template <class Range>
requires(std::ranges::range<Range>&& std::is_lvalue_reference_v<std::ranges::range_reference_t<Range>> &&
         !std::same_as<std::ranges::range_value_t<Range>, Range>) struct TensorsIn<Range> {
  using Value = std::remove_reference_t<std::ranges::range_reference_t<Range>>;
  static constexpr bool any = TensorsIn<Value>::any;
  static void visit(Range& range, TensorVisitor visit) {
    if constexpr (any) {
      for (auto& value : range) TensorsIn<Value>::visit(value, visit);
    }
  }
};

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
