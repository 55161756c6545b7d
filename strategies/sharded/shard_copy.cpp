#include "strategies/sharded/shard_copy.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <utility>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/device/host_copies.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/files/xxh3.hpp"
#include "tensor_io/kernels/reduce_kernels.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kHash = 8, kBegin = 16;  // end of the hash, begin of the head
constexpr std::int64_t kPiece = 256 << 10;      // stays in a core's cache
constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
constexpr const char* kWhere = "the copy of a shard";

[[noreturn]] void refuse(const std::string& cause) {
  throw Error(ErrorCode::bad_data, kWhere, cause, "check the memory and network of the host that kept it");
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::span<const std::byte> span_of(const void* data, std::int64_t bytes) {
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)};
}

// JSON's numbers, in their range: nlohmann cuts off what does not fit.
template <class Number>
Number number(const nlohmann::json& value, const char* name) {
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<Number>(value.get<std::uint64_t>())
                        : value.is_number_integer() && std::in_range<Number>(value.get<std::int64_t>());
  if (!fits) refuse(std::string("'") + name + "' is not a whole number in its range");
  return value.get<Number>();
}

const nlohmann::json& field(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  if (!object.is_object() || found == object.end()) refuse(std::string("no '") + name + "'");
  return *found;
}

std::string text_of(const nlohmann::json& value, const char* name) {
  if (!value.is_string()) refuse(std::string("'") + name + "' is not a string");
  return value.get<std::string>();
}

// Fills in everything but `bytes`: views of `data`, where the tensors begin.
void read_head(ShardCopy& copy, std::string_view head, const at::Tensor& data) {
  const auto root = parse_bounded_json(head, kWhere, {.depth = 5});
  copy.held = {number<std::uint64_t>(field(root, "generation"), "generation"),
               number<std::int64_t>(field(root, "step"), "step"), number<std::int32_t>(field(root, "shard"), "shard"),
               number<std::int32_t>(field(root, "shards"), "shards")};
  copy.note = text_of(field(root, "note"), "note");
  const auto& entries = field(root, "tensors");
  if (!entries.is_array()) refuse("'tensors' is not a list");
  std::set<std::string> names;
  std::int64_t end = 0;
  for (const auto& entry : entries) {
    if (!entry.is_array() || entry.size() != 3 || !entry[2].is_array())
      refuse("an entry of 'tensors' is not [name, type, sizes]");
    const auto name = text_of(entry[0], "name"), type = text_of(entry[1], "type");
    if (!names.insert(name).second) refuse("tensor '" + name + "' appears twice");
    const auto dtype = scalar_type_of(type);
    if (!dtype) refuse("tensor " + printable(name) + " is of an unknown type, " + printable(type));
    std::vector<std::int64_t> sizes;
    for (const auto& size : entry[2]) sizes.push_back(number<std::int64_t>(size, "size"));
    const auto width = c10::elementSize(*dtype);
    const auto numel = sizes.size() > SafetensorsFile::kMaxDimensions ? std::nullopt : checked_numel(sizes, width);
    if (!numel) refuse("tensor '" + name + "' has an impossible shape, or too many elements");
    const auto length = *numel * static_cast<std::int64_t>(width);
    if (length > data.numel() - end) refuse("tensor '" + name + "' reaches beyond the end");
    copy.tensors.emplace_back(name, data.narrow(0, end, length).view(*dtype).view(sizes));
    end = std::min(end + aligned(length), data.numel());
  }
  if (end != data.numel()) refuse(std::to_string(data.numel() - end) + " bytes belong to no tensor");
}

// A tensor on the CPU without gaps, and where in the copy it goes.
struct Part {
  std::int64_t begin, end;
  const char* source;
};

std::pair<std::string_view, at::Tensor> cut(const at::Tensor& bytes) {
  std::uint64_t length = 0;
  if (bytes.numel() < kBegin) refuse("it has " + std::to_string(bytes.numel()) + " bytes");
  const auto* data = static_cast<const char*>(bytes.const_data_ptr());
  std::memcpy(&length, data + kHash, sizeof length);
  if (length > static_cast<std::uint64_t>(bytes.numel() - kBegin))
    refuse("its head has " + std::to_string(length) + " bytes");
  const auto begin = aligned(kBegin + static_cast<std::int64_t>(length));
  if (begin > bytes.numel()) refuse("its head reaches beyond the end");
  return {std::string_view(data + kBegin, length), bytes.narrow(0, begin, bytes.numel() - begin)};
}

}  // namespace

std::string to_text(const std::vector<HeldShard>& held) {
  auto list = nlohmann::json::array();
  for (const auto& copy : held) list.push_back({copy.generation, copy.step, copy.shard, copy.shards, copy.bytes});
  return list.dump();
}

std::vector<HeldShard> held_shards_of(std::string_view text) {
  const auto list = parse_bounded_json(text, "the list of a rank's copies", {.depth = 3});
  if (!list.is_array()) refuse("the list of a rank's copies is not a JSON array");
  std::vector<HeldShard> held;
  for (const auto& entry : list) {
    if (!entry.is_array() || entry.size() != 5) refuse("an entry in the list of a rank's copies is not five numbers");
    held.push_back({number<std::uint64_t>(entry[0], "generation"), number<std::int64_t>(entry[1], "step"),
                    number<std::int32_t>(entry[2], "shard"), number<std::int32_t>(entry[3], "shards"),
                    number<std::int64_t>(entry[4], "bytes")});
    if (const auto bytes = held.back().bytes; bytes < 0 || bytes > kMostBytes)
      refuse("a rank announces a copy of " + std::to_string(bytes) + " bytes");
  }
  return held;
}

ShardPacker::ShardPacker(const HeldShard& held, const std::string& note, NamedTensors tensors)
    : held_(held), tensors_(std::move(tensors)) {
  auto entries = nlohmann::json::array();
  std::set<std::string> names;
  std::int64_t end = 0;
  for (const auto& [name, tensor] : tensors_) {
    const auto cannot = [&name = name](const std::string& cause) {
      return Error(ErrorCode::usage, kWhere, "tensor '" + name + "' " + cause,
                   "set --snapshot_every 0 to train without copies");
    };
    const auto type = safetensors_dtype(tensor.scalar_type());
    if (!type) throw cannot(std::string("is of type ") + c10::toString(tensor.scalar_type()));
    if (!names.insert(name).second) throw cannot("appears twice");
    entries.push_back({name, *type, tensor.sizes().vec()});
    end += aligned(static_cast<std::int64_t>(tensor.nbytes()));
  }
  head_ = nlohmann::json{{"generation", held.generation}, {"step", held.step}, {"shard", held.shard},
                         {"shards", held.shards},         {"note", note},      {"tensors", entries}}
              .dump();
  // NOLINTNEXTLINE(cppcoreguidelines-prefer-member-initializer): of the head, which is made here
  begin_ = aligned(kBegin + static_cast<std::int64_t>(head_.size()));
  held_.bytes = begin_ + end;
}

void ShardPacker::pack(const at::Tensor& memory) const {
  auto* data = reinterpret_cast<char*>(memory.data_ptr<std::uint8_t>());
  const std::uint64_t length = head_.size();
  std::memset(data, 0, static_cast<std::size_t>(begin_));
  std::memcpy(data + kHash, &length, sizeof length);
  std::copy(head_.begin(), head_.end(), data + kBegin);

  std::vector<Part> parts;
  HostCopies copies;
  std::int64_t end = begin_;
  for (const auto& [name, tensor] : tensors_) {
    const auto begin = end, used = static_cast<std::int64_t>(tensor.nbytes());
    end += aligned(used);
    std::memset(data + begin + used, 0, static_cast<std::size_t>(end - begin - used));
    if (tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj()) {
      parts.push_back({begin, begin + used, static_cast<const char*>(tensor.const_data_ptr())});
    } else {
      copies.add(memory.narrow(0, begin, used).view(tensor.scalar_type()).view(tensor.sizes()), tensor.detach());
    }
  }
  copies.wait();

  Xxh3Stream hash;
  auto part = parts.begin();
  for (std::int64_t at = kHash; at < bytes(); at += kPiece) {
    const auto stop = std::min(at + kPiece, bytes());
    while (part != parts.end() && part->end <= at) ++part;
    if (part != parts.end() && part->begin <= at && stop <= part->end) {
      const auto* source = part->source + (at - part->begin);
      copy_streaming(data + at, source, static_cast<std::size_t>(stop - at));
      hash.update(span_of(source, stop - at));
      continue;
    }
    for (auto next = part; next != parts.end() && next->begin < stop; ++next) {
      const auto from = std::max(at, next->begin), to = std::min(stop, next->end);
      if (from < to) std::memcpy(data + from, next->source + (from - next->begin), static_cast<std::size_t>(to - from));
    }
    hash.update(span_of(data + at, stop - at));
  }
  const auto value = hash.take();
  std::memcpy(data, &value, sizeof value);
}

at::Tensor ShardPacker::pack() const {
  const auto on_device =
      std::find_if(tensors_.begin(), tensors_.end(), [](const auto& one) { return !one.second.is_cpu(); });
  auto memory = HostCopies::memory(bytes(), on_device == tensors_.end() ? at::kCPU : on_device->second.device());
  pack(memory);
  return memory;
}

ShardCopy ShardCopy::unpack(at::Tensor bytes) {
  const auto [text, memory] = cut(bytes);
  const auto* data = static_cast<const char*>(bytes.const_data_ptr());
  std::uint64_t stated = 0;
  std::memcpy(&stated, data, sizeof stated);
  if (xxh3(span_of(data + kHash, bytes.numel() - kHash)) != stated)
    refuse("its XXH3 differs from the one taken when the copy was made");
  ShardCopy copy;
  read_head(copy, text, memory);
  copy.held.bytes = bytes.numel();
  copy.bytes = std::move(bytes);
  return copy;
}

}  // namespace troupe
