#pragma once
#include <torch/torch.h>

#include <bit>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::test {

/// The values that tests/golden/make_training_golden.py wrote, bit for bit.
class Golden {
 public:
  explicit Golden(const std::string& file) {
    std::ifstream in(TROUPE_SOURCE_DIR "/tests/golden/" + file);
    if (!in) throw std::runtime_error("there is no tests/golden/" + file);
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      std::string name;
      words >> name;
      auto& list = values_[name];
      for (std::string word; words >> word;) list.push_back(word);
    }
  }

  /// (n,) f32
  at::Tensor tensor(const std::string& name) const {
    std::vector<float> floats;
    for (const auto& word : words(name))
      floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(word, nullptr, 16))));
    return torch::tensor(floats);
  }
  std::vector<double> doubles(const std::string& name) const {
    std::vector<double> list;
    for (const auto& word : words(name))
      list.push_back(std::bit_cast<double>(static_cast<std::uint64_t>(std::stoull(word, nullptr, 16))));
    return list;
  }

 private:
  const std::vector<std::string>& words(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) throw std::runtime_error("no golden value " + name);
    return found->second;
  }
  std::map<std::string, std::vector<std::string>> values_;
};

/// The generator's inputs: multiples of 1/64, exact in f32.
inline at::Tensor pattern(std::vector<std::int64_t> shape, std::int64_t salt) {
  std::int64_t numel = 1;
  for (const auto extent : shape) numel *= extent;
  std::vector<float> values;
  for (std::int64_t i = 0; i < numel; ++i) values.push_back(static_cast<float>((i * 37 + salt * 11) % 101 - 50) / 64);
  return torch::tensor(values).view(shape);
}

inline double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach().to(at::kDouble).flatten() - b.detach().to(at::kDouble).flatten()).abs().max().item<double>();
}

}  // namespace troupe::test
