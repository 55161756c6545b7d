#pragma once
#include <functional>

namespace troupe {

/// Capability of a Strategy that acts before, in or after forward without backward, perhaps not equally often on all
/// ranks. Compute's thread.
class Evaluation {
 public:
  /// Both are collective.
  virtual void begin_evaluation() {}
  virtual void end_evaluation() {}
  /// Between them: runs one forward. False: the result is another rank's, and `forward` did not end.
  virtual bool evaluate(const std::function<void()>& forward) {
    forward();
    return true;
  }

 protected:
  ~Evaluation() = default;
};

}  // namespace troupe
