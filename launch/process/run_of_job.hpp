#pragma once
#include <string>

namespace troupe {

/// What the parts of a job know of its run.
struct RunOfJob {
  std::string job_id;      ///< of this life
  std::string folder;      ///< empty: none
  std::string run_id;      ///< of the run's first life
  std::string checkpoint;  ///< that this life goes on from; empty: the program says
  std::string outline;     ///< what all nodes have to have alike (job_outline.hpp); empty: there is one node

  /// A line each, and back. Throws Error(bad_data) for another number of lines.
  std::string to_text() const;
  static RunOfJob from_text(const std::string& text);
};

}  // namespace troupe
