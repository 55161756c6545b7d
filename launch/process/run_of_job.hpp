#pragma once
#include <string>

namespace troupe {

/// A job's facts of its run, for all its parts.
struct RunOfJob {
  std::string job_id;      ///< of this life
  std::string folder;      ///< empty: none
  std::string run_id;      ///< of the run's first life
  std::string checkpoint;  ///< from which this life goes on; empty: the program decides
  std::string outline;     ///< must be the same on all nodes (job_outline.hpp); empty: there is one node

  /// A line each, and back. Throws Error(bad_data) for another number of lines.
  std::string to_text() const;
  static RunOfJob from_text(const std::string& text);
};

}  // namespace troupe
