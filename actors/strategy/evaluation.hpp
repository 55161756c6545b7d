#pragma once
#include <functional>

namespace troupe {

/// Capability of a Strategy that has something to do before, in or after forward without backward, which ranks perhaps
/// run not equally often. Compute's thread.
class Evaluation {
 public:
  /// Both are collective.
  virtual void begin_evaluation() {}
  virtual void end_evaluation() {}
  /// Between them: runs one forward. False: the result is another rank's, `forward` did not come to its end.
  virtual bool evaluate(const std::function<void()>& forward) {
    forward();
    return true;
  }

 protected:
  ~Evaluation() = default;
};

}  // namespace troupe
