#include "tensor_io/rank_state.hpp"

#include <cereal/archives/json.hpp>
#include <cereal/types/string.hpp>

#include <cmath>
#include <sstream>
#include <utility>

#include "tensor_io/bounded_file.hpp"
#include "tensor_io/bounded_json.hpp"
#include "tensor_io/error.hpp"

namespace troupe {

namespace {

constexpr std::int64_t kVersion = 1;
constexpr int kAllDigits = 324;  // decimal places; fewer would round small numbers to 0

// A map as a JSON object with its keys for names, where cereal would write a list of pairs.
template <class Value>
struct Fields {
  std::map<std::string, Value>& values;

  void save(cereal::JSONOutputArchive& archive) const {
    for (const auto& [key, value] : values) archive(cereal::make_nvp(key, value));
  }
  void load(cereal::JSONInputArchive& archive) {
    for (const char* name = archive.getNodeName(); name != nullptr; name = archive.getNodeName()) {
      std::string key = name;
      archive(values[key]);
    }
  }
};

// A generator's state as base64; its length stands before it, and was checked against the text's.
struct Bytes {
  std::vector<std::uint8_t>& bytes;
  std::size_t limit;

  void save(cereal::JSONOutputArchive& archive) const {
    archive(cereal::make_nvp("bytes", static_cast<std::uint64_t>(bytes.size())));
    archive.saveBinaryValue(bytes.data(), bytes.size(), "base64");
  }
  void load(cereal::JSONInputArchive& archive) {
    std::uint64_t count = 0;
    archive(cereal::make_nvp("bytes", count));
    if (count > limit) throw cereal::Exception("'rng' states more bytes than the text has");
    bytes.resize(static_cast<std::size_t>(count));
    std::uint8_t nothing = 0;  // cereal copies 0 bytes, too, and may not be given a null pointer for them
    archive.loadBinaryValue(bytes.empty() ? &nothing : bytes.data(), bytes.size(), "base64");
  }
};

template <class Archive>
void visit(Archive& archive, RankState& state, std::size_t limit) {
  std::int64_t version = kVersion;
  archive(cereal::make_nvp("format_version", version));
  if (version != kVersion)
    throw cereal::Exception("format version " + std::to_string(version) + ", this program reads " + std::to_string(kVersion));
  Bytes rng{state.rng, limit};
  Fields<double> counters{state.counters};
  Fields<std::string> strings{state.strings};
  archive(cereal::make_nvp("epoch", state.epoch), cereal::make_nvp("step_in_epoch", state.step_in_epoch),
          cereal::make_nvp("counters", counters), cereal::make_nvp("strings", strings), cereal::make_nvp("rng", rng));
}

}  // namespace

std::string RankState::to_json() const {
  for (const auto& [key, value] : counters) {
    if (!std::isfinite(value)) throw Error(ErrorCode::usage, "writing a rank's state", "counter " + printable(key) + " is not finite");
  }
  RankState copy = *this;
  std::ostringstream text;
  {
    cereal::JSONOutputArchive archive(
        text, cereal::JSONOutputArchive::Options(kAllDigits, cereal::JSONOutputArchive::Options::IndentChar::space, 2));
    visit(archive, copy, copy.rng.size());
  }  // the archive closes the object when it goes
  auto result = text.str() + "\n";
  try {
    parse_bounded_json(result, "writing a rank's state", {.depth = 2});
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, "writing a rank's state", error.report().cause);
  }
  if (result.size() > kMaxTextBytes)
    throw Error(ErrorCode::usage, "writing a rank's state", "it has " + std::to_string(result.size()) + " bytes");
  return result;
}

RankState RankState::from_json(std::string_view text, const std::string& where) {
  if (text.size() > kMaxTextBytes)
    throw Error(ErrorCode::bad_data, where, "has " + std::to_string(text.size()) + " bytes, more than a rank's state may have");
  // cereal's parser is recursive and takes what comes, so the text's form is checked before it sees it.
  const auto root = parse_bounded_json(text, where, {.depth = 2});
  if (!root.is_object()) throw Error(ErrorCode::bad_data, where, "is not a JSON object");
  try {
    std::istringstream stream{std::string(text)};
    cereal::JSONInputArchive archive(stream);
    RankState state;
    visit(archive, state, text.size());
    if (state.epoch < 0 || state.step_in_epoch < 0) throw cereal::Exception("'epoch' and 'step_in_epoch' count from 0");
    return state;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::bad_data, where, "is no rank's state: " + std::string(error.what()));
  }
}

}  // namespace troupe
