#pragma once
// What the ranks see while they run, as JSON, so that it passes from one process to another.
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include <nlohmann/json.hpp>

#include "actors/compute/compute.hpp"
#include "tensor_io/data/dataset.hpp"
#include "tests/differential/job.hpp"
#include "tests/differential/outcome.hpp"

namespace troupe::differential {

/// Takes down one note of a rank, on that rank's thread.
using TakeNote = std::function<void(const nlohmann::json& note)>;

/// A step is done. What rank 0 (`main`) says counts, unless it was lost before it did.
nlohmann::json note_of_step(const StepReport& report, bool main);
/// The program was called between two steps. To be noted by rank 0.
nlohmann::json note_of_call();
/// The model's output in a step has this type.
nlohmann::json note_of_output(std::int64_t step, at::ScalarType type);
/// The rank has these samples of a micro-batch.
nlohmann::json note_of_samples(const Job& job, const Batch& batch, const DataShard& shard);

/// The notes of all ranks, put together. Of a step that was run again the later note counts.
class Notes {
 public:
  /// Steps and calls go into `outcome`.
  explicit Notes(Outcome& outcome) : outcome_(outcome) {}

  void add(const nlohmann::json& note);  ///< any thread
  /// Once all steps are in the outcome, wherever they came from: adds the types of their outputs.
  void finish();
  const Order& order() const { return order_; }

 private:
  std::mutex mutex_;
  Outcome& outcome_;
  Order order_;
  std::map<std::int64_t, std::string> types_;
};

}  // namespace troupe::differential
