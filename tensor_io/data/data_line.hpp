#pragma once
#include <cstdint>
#include <string>

namespace troupe {

class Dataset;

/// A number as people read it: 1,797.
std::string with_commas(std::int64_t number);

/// A description of the data, for the start of a run: `data: digits.csv, 1,797 rows of 64 numbers and a label, no
/// header; 1,438 to train, 359 held out (every 5th)`. The words are the data sets' descriptions.
std::string data_line(const Dataset& train, const Dataset* held_out);

}  // namespace troupe
