#pragma once
#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

/// The fields of a plain struct, from its definition: the wire, the journal and a log need no second list of them. The
/// way is Boost.PFR's: https://www.boost.org/doc/libs/release/doc/html/boost_pfr.html
namespace troupe {

/// Converts to any type: it serves to count a struct's fields.
struct AnyField {
  template <class T>
  operator T() const;
};

template <class T, std::size_t... Field>
constexpr bool takes_fields(std::index_sequence<Field...>) {
  return requires { T{(static_cast<void>(Field), AnyField{})...}; };
}

/// The number of fields of a struct without bases and constructors.
template <class T, std::size_t N = 0>
constexpr std::size_t field_count() {
  if constexpr (takes_fields<T>(std::make_index_sequence<N + 1>())) return field_count<T, N + 1>();
  return N;
}

/// References to all fields of `x`, in the order of their declaration; at most 16.
template <class T>
constexpr auto fields_of(T& x) {
  constexpr auto n = field_count<std::remove_const_t<T>>();
  static_assert(n <= 16, "add a line below");
  if constexpr (n == 0) {
    return std::tie();
  } else if constexpr (n == 1) {
    auto& [a] = x;
    return std::tie(a);
  } else if constexpr (n == 2) {
    auto& [a, b] = x;
    return std::tie(a, b);
  } else if constexpr (n == 3) {
    auto& [a, b, c] = x;
    return std::tie(a, b, c);
  } else if constexpr (n == 4) {
    auto& [a, b, c, d] = x;
    return std::tie(a, b, c, d);
  } else if constexpr (n == 5) {
    auto& [a, b, c, d, e] = x;
    return std::tie(a, b, c, d, e);
  } else if constexpr (n == 6) {
    auto& [a, b, c, d, e, f] = x;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (n == 7) {
    auto& [a, b, c, d, e, f, g] = x;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (n == 8) {
    auto& [a, b, c, d, e, f, g, h] = x;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (n == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = x;
    return std::tie(a, b, c, d, e, f, g, h, i);
  } else if constexpr (n == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = x;
    return std::tie(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (n == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = x;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (n == 12) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = x;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (n == 13) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = x;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m);
  } else if constexpr (n == 14) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = x;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  } else if constexpr (n == 15) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = x;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  } else {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = x;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
  }
}

/// The struct's name without its namespaces. GCC's text ends with "[with T = troupe::JoinJob; ...]", Clang's with
/// "[T = troupe::JoinJob]".
template <class T>
constexpr std::string_view name_of_struct() {
  std::string_view name = __PRETTY_FUNCTION__;
  name.remove_prefix(name.find("T = ") + 4);
  name = name.substr(0, name.find_first_of(";]"));
  return name.substr(name.rfind(':') + 1);
}

}  // namespace troupe
