#pragma once
// Files that usual tools wrote or read, and what these tools read in them: tests/reading/cases/READER.json, made by
// tests/python/reading/make.py. A reader of ours reads the same values, or refuses the file.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tensor_io/layout/named_tensors.hpp"

namespace troupe::testing {

struct ReadingCase {
  std::string name;
  std::map<std::string, std::string> files, links;  ///< path below the case's folder -> bytes, -> what it leads to
  nlohmann::json settings;                          ///< of our reader
  std::string refused;                              ///< words of the refusal; empty: it is read
  std::string on_purpose;  ///< why we refuse, or read otherwise, what the usual tool reads; empty: we do as it does
  double tolerance = 0;    ///< of a value, absolute: where decoders may differ (JPEG); 0: the same bits
  NamedTensors values;     ///< what is read
};

std::vector<ReadingCase> reading_cases(const std::string& reader);

/// Reads each case's files, from a folder of its own, with `read`. Fails for each case whose values differ in name,
/// shape, dtype or bits (any NaN is as good as another), or that is not refused with its words.
void check_reading(const std::string& reader,
                   const std::function<NamedTensors(const std::string& folder, const ReadingCase&)>& read);

}  // namespace troupe::testing
