#pragma once
#include <cstdint>

namespace troupe {

/// A run's place in the data: the next step to load.
struct DataCursor {
  std::int64_t epoch = 0;
  std::int64_t step = 0;  ///< within the epoch
};

}  // namespace troupe
