#include "tensor_io/data/data_line.hpp"

#include "tensor_io/data/dataset.hpp"

namespace troupe {

std::string with_commas(std::int64_t number) {
  auto text = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;
  for (auto place = text.size(); place > first + 3;) text.insert(place -= 3, ",");
  return text;
}

std::string data_line(const Dataset& train, const Dataset* held_out) {
  const auto& described = train.description();
  auto line =
      "data: " + (described.empty() ? train.name() : described) + "; " + with_commas(train.size()) + " to train, ";
  if (held_out == nullptr) return line + "none held out";
  line += with_commas(held_out->size()) + " held out";
  return held_out->description().empty() ? line : line + " (" + held_out->description() + ")";
}

}  // namespace troupe
