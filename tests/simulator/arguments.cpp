#include "tests/simulator/arguments.hpp"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace troupe::simulator {
namespace {

std::uint64_t whole_number(const std::string& text) {
  char* end = nullptr;
  const auto value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || text[0] == '-') refuse("'" + text + "' is no whole number");
  return value;
}

template <class Number>
std::vector<Number> whole_numbers(const std::string& text) {
  std::vector<Number> numbers;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) numbers.push_back(static_cast<Number>(whole_number(part)));
  return numbers;
}

}  // namespace

void refuse(const std::string& why) {
  std::fprintf(stderr,
               "simulate: %s\nusage: ./dev simulate [SEEDS [FIRST_SEED]] [--faults 0,2] [--log] [--plant BUG] | "
               "--ranks 1000,10000\n",
               why.c_str());
  std::exit(2);
}

Arguments parse_arguments(int argc, const char* const* argv, std::uint64_t default_seeds) {
  Arguments arguments;
  arguments.seeds = default_seeds;
  int position = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--log") {
      arguments.log = true;
    } else if (word == "--faults" || word == "--plant" || word == "--ranks") {
      if (++i == argc) refuse(word + " needs a value");
      if (word == "--faults") arguments.faults = whole_numbers<std::size_t>(argv[i]);
      if (word == "--plant") arguments.plant = argv[i];
      if (word == "--ranks") arguments.ranks = whole_numbers<int>(argv[i]);
    } else if (position < 2) {
      (position++ == 0 ? arguments.seeds : arguments.first) = whole_number(word);
    } else {
      refuse("'" + word + "' is one too many");
    }
  }
  return arguments;
}

}  // namespace troupe::simulator
