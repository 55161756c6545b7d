#include "actors/step/time_sums.hpp"

#include <algorithm>

namespace troupe {

void TimeSums::add(const StepReport& report) {
  step_ms += report.step_ms;
  exposed_ms += report.exposed_ms;
  reduce_ms += report.reduce_ms;
  data_ms += report.data_ms;
  inside_ms += report.inside_ms;
  optimizer_ms += report.optimizer_ms;
  hidden_ms += std::max(0.0, report.reduce_ms - report.exposed_ms);
  batch_queue_ms += report.batch_queue_ms;
  bucket_queue_ms += report.bucket_queue_ms;
}

void TimeSums::add(const TimeSums& other) {
  for (const auto sum : {&TimeSums::step_ms, &TimeSums::exposed_ms, &TimeSums::reduce_ms, &TimeSums::data_ms,
                         &TimeSums::inside_ms, &TimeSums::optimizer_ms, &TimeSums::hidden_ms, &TimeSums::validation_ms,
                         &TimeSums::checkpoint_ms, &TimeSums::batch_queue_ms, &TimeSums::bucket_queue_ms})
    this->*sum += other.*sum;
}

}  // namespace troupe
