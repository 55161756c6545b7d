#include "tests/reading/reading_cases.hpp"

#include <ATen/Functions.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

namespace troupe::testing {
namespace {

namespace fs = std::filesystem;

std::string from_base64(const std::string& text) {
  static const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    const auto value = letters.find(c);
    if (value == std::string::npos) throw std::runtime_error("a case's base64 has '" + std::string(1, c) + "' in it");
    bits = bits << 6U | static_cast<std::uint32_t>(value);
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> static_cast<unsigned>(count -= 8) & 0xFFU);
  }
  return bytes;
}

at::ScalarType dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> types{{"bool", at::kBool},
                                                           {"uint8", at::kByte},
                                                           {"int8", at::kChar},
                                                           {"int16", at::kShort},
                                                           {"int32", at::kInt},
                                                           {"int64", at::kLong},
                                                           {"float16", at::kHalf},
                                                           {"bfloat16", at::kBFloat16},
                                                           {"float32", at::kFloat},
                                                           {"float64", at::kDouble},
                                                           {"uint16", at::kUInt16},
                                                           {"uint32", at::kUInt32},
                                                           {"uint64", at::kUInt64},
                                                           {"complex64", at::kComplexFloat},
                                                           {"complex128", at::kComplexDouble},
                                                           {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                           {"float8_e5m2", at::kFloat8_e5m2},
                                                           {"float8_e8m0fnu", at::kFloat8_e8m0fnu}};
  return types.at(name);
}

at::Tensor tensor_of(const nlohmann::json& entry) {
  auto tensor = at::empty(entry.at("shape").get<std::vector<std::int64_t>>(), dtype_of(entry.at("dtype")));
  const auto bytes = from_base64(entry.at("data"));
  if (bytes.size() != tensor.nbytes()) throw std::runtime_error("a case's tensor has another number of bytes");
  if (!bytes.empty()) bytes.copy(static_cast<char*>(tensor.data_ptr()), bytes.size());
  return tensor;
}

// The bits, with one NaN for all.
at::Tensor comparable(const at::Tensor& tensor) {
  auto values = tensor.clone(at::MemoryFormat::Contiguous);  // contiguous() leaves odd strides where sizes are 1
  if (at::isFloatingType(values.scalar_type())) {
    const auto numbers = values.to(at::kDouble);
    if (numbers.isnan().any().item<bool>()) values = at::nan_to_num(numbers, 12345.678);
  }
  return values.reshape({-1}).view(at::kByte);
}

bool equal(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (tolerance == 0) return at::equal(comparable(a), comparable(b));
  return at::allclose(a.to(at::kDouble), b.to(at::kDouble), 0, tolerance);
}

std::string difference(const NamedTensors& got, const NamedTensors& wanted, double tolerance) {
  std::map<std::string, at::Tensor> ours(got.begin(), got.end());
  for (const auto& [name, tensor] : wanted) {
    const auto found = ours.find(name);
    if (found == ours.end()) return name + ": not read";
    const auto& read = found->second;
    if (read.sizes() != tensor.sizes() || read.scalar_type() != tensor.scalar_type())
      return name + ": " + read.toString() + c10::str(read.sizes()) + ", not " + tensor.toString() +
             c10::str(tensor.sizes());
    if (!equal(read, tensor, tolerance)) {
      const auto flat = read.reshape({-1}), right = tensor.reshape({-1});
      for (std::int64_t i = 0; i < flat.numel(); ++i) {
        if (!equal(flat.slice(0, i, i + 1), right.slice(0, i, i + 1), tolerance))
          return name + ": element " + std::to_string(i) + " is " + c10::str(flat[i].item()) + ", not " +
                 c10::str(right[i].item());
      }
    }
    ours.erase(found);
  }
  return ours.empty() ? "" : ours.begin()->first + ": read, and not there";
}

std::string outcome_of(const ReadingCase& one, const std::string& folder,
                       const std::function<NamedTensors(const std::string&, const ReadingCase&)>& read) {
  try {
    const auto got = read(folder, one);
    return one.refused.empty() ? difference(got, one.values, one.tolerance)
                               : "it was read, and should be refused: " + one.refused;
  } catch (const Error& error) {
    const std::string said = error.what();
    if (one.refused.empty()) return "refused: " + said;
    return said.find(one.refused) != std::string::npos ? "" : "refused with other words: " + said;
  }
}

}  // namespace

std::vector<ReadingCase> reading_cases(const std::string& reader) {
  std::ifstream file(TROUPE_SOURCE_DIR "/tests/reading/cases/" + reader + ".json");
  const auto document = nlohmann::json::parse(file);
  std::vector<ReadingCase> cases;
  for (const auto& entry : document.at("cases")) {
    ReadingCase one;
    one.name = entry.at("name");
    for (const auto& [path, data] : entry.at("files").items()) one.files[path] = from_base64(data);
    const auto links = entry.value("links", nlohmann::json::object());
    for (const auto& [path, target] : links.items()) one.links[path] = target;
    one.settings = entry.value("settings", nlohmann::json::object());
    one.refused = entry.value("refused", "");
    one.tolerance = entry.value("tolerance", 0.0);
    one.on_purpose = entry.value("on_purpose", "");
    const auto values = entry.value("values", nlohmann::json::object());
    for (const auto& [name, tensor] : values.items()) one.values.emplace_back(name, tensor_of(tensor));
    if (one.refused.empty() == one.values.empty()) throw std::runtime_error(one.name + ": either values or a refusal");
    cases.push_back(std::move(one));
  }
  return cases;
}

void check_reading(const std::string& reader,
                   const std::function<NamedTensors(const std::string& folder, const ReadingCase&)>& read) {
  const auto cases = reading_cases(reader);
  CHECK_FALSE(cases.empty());
  for (const auto& one : cases) {
    ScratchDirectory folder;
    for (const auto& [path, bytes] : one.files) {
      const auto target = fs::path(folder.path()) / path;
      fs::create_directories(target.parent_path());
      std::ofstream(target, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
    for (const auto& [path, leads_to] : one.links) {
      const auto link = fs::path(folder.path()) / path;
      fs::create_directories(link.parent_path());
      fs::create_symlink(leads_to, link);
    }
    const auto wrong = outcome_of(one, folder.path(), read);
    if (!wrong.empty()) FAIL_CHECK(reader + ", " + one.name + ": " + wrong);
  }
}

}  // namespace troupe::testing
