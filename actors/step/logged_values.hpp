#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

/// How the values of a program's own metric become one, over micro-batches, ranks, and the steps of an interval.
enum class Reduce : std::uint8_t { mean, sum, min, max };

/// Throws Error(usage) for a name that a sink could not take. It is empty, longer than 200 bytes, has other characters
/// than letters, digits, `_ - . /` and spaces, or is a name of the run's own records.
void check_metric_name(const std::string& name);

/// Values of a program's own metrics, reduced as they come. The same values give the same result in any order but for
/// the rounding of sums. Pure.
class LoggedValues {
 public:
  /// The most names, and the most bytes of a name: the data of a peer is bounded.
  static constexpr std::size_t kMostNames = 200, kLongestName = 200;

  /// `weight`, at least 0, counts in a mean alone; a value of weight 0 is left out, whatever the reduction. Throws
  /// Error(usage) if the name was reduced another way before, or is one too many.
  void add(const std::string& name, double value, Reduce reduce, double weight = 1);
  void add(const LoggedValues& others);

  bool empty() const noexcept { return values_.empty(); }
  std::vector<std::pair<std::string, double>> results() const;  ///< by name
  std::optional<double> value(const std::string& name) const;   ///< nothing: no rank has logged it

  /// The bytes that `decode` reads; empty for no values. Throws Error(bad_data) for other bytes.
  std::string encode() const;
  static LoggedValues decode(std::string_view bytes);

 private:
  struct Value {
    Reduce reduce = Reduce::mean;
    double value = 0;   // of a mean: the sum of values times weights
    double weight = 0;  // of a mean: the sum
    double result() const { return reduce == Reduce::mean ? value / weight : value; }
  };
  void merge(const std::string& name, const Value& other);

  std::map<std::string, Value> values_;
};

}  // namespace troupe
