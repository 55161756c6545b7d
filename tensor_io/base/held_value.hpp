#pragma once
#include <utility>

namespace troupe {

/// Gives `place` another value while it lives, and then the one from before.
template <class T>
class HeldValue {
 public:
  HeldValue(T& place, T value) : place_(place), before_(std::exchange(place, value)) {}
  ~HeldValue() { place_ = before_; }
  HeldValue(const HeldValue&) = delete;
  HeldValue& operator=(const HeldValue&) = delete;

 private:
  T& place_;
  const T before_;
};

}  // namespace troupe
