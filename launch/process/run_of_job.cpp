#include "launch/process/run_of_job.hpp"

#include <cstddef>

#include "tensor_io/base/error.hpp"

namespace troupe {

std::string RunOfJob::to_text() const {
  return job_id + "\n" + folder + "\n" + run_id + "\n" + checkpoint + "\n" + outline + "\n";
}

RunOfJob RunOfJob::from_text(const std::string& text) {
  RunOfJob run;
  std::size_t begin = 0;
  for (auto* part : {&run.job_id, &run.folder, &run.run_id, &run.checkpoint, &run.outline}) {
    const auto end = text.find('\n', begin);
    if (end == std::string::npos)
      throw Error(ErrorCode::bad_data, "coordinator", "it did not say which run it belongs to");
    *part = text.substr(begin, end - begin);
    begin = end + 1;
  }
  return run;
}

}  // namespace troupe
