// State between ranks: copies of shards, what goes ahead of a heal, what a rank leaves at the rendezvous, the state of
// a rank on disk.
#include <ATen/ops/empty.h>

#include <cstring>

#include "actors/recovery/heal_header.hpp"
#include "strategies/sharded/shard_copy.hpp"
#include "tensor_io/checkpoint/rank_state.hpp"
#include "tensor_io/communicator/gloo/abort_reason.hpp"
#include "tensor_io/files/xxh3.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

namespace {

at::Tensor tensor_of(std::string_view bytes) {
  auto tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

// The tensors of a copy lie in its bytes, and it can be packed again.
void use(const ShardCopy& copy) {
  const auto* begin = static_cast<const char*>(copy.bytes.const_data_ptr());
  for (const auto& [name, tensor] : copy.tensors) {
    const auto* data = static_cast<const char*>(tensor.const_data_ptr());
    if (tensor.nbytes() > 0 && (data < begin || data + tensor.nbytes() > begin + copy.bytes.numel())) std::abort();
  }
  const auto again = ShardCopy::unpack(ShardPacker(copy.held, copy.note, copy.tensors).pack());
  auto held = copy.held;
  held.bytes = again.bytes.numel();  // without the white space that its head may have
  if (again.held != held || again.tensors.size() != copy.tensors.size()) std::abort();
}

// A text as the head, with a right hash and so much behind it.
std::string with_head(std::string_view head, std::size_t behind) {
  std::string bytes(16, '\0');
  const std::uint64_t length = head.size();
  std::memcpy(bytes.data() + 8, &length, sizeof length);
  bytes += head;
  bytes.resize((bytes.size() + 63) / 64 * 64 + behind);
  const auto hash = xxh3(std::string_view(bytes).substr(8));
  std::memcpy(bytes.data(), &hash, sizeof hash);
  return bytes;
}

}  // namespace

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 2) return 0;
  const auto text = fuzz::text_of(data + 2, bytes - 2);
  return fuzz::try_input([&] {
    switch (data[0] % 7) {
      case 0: return use(ShardCopy::unpack(tensor_of(text)));
      case 1: return use(ShardCopy::unpack(tensor_of(with_head(text, data[1] * std::size_t{64}))));
      case 2: {
        const auto held = held_shards_of(text);
        if (held_shards_of(to_text(held)) != held) std::abort();
        return;
      }
      case 3: {
        const auto header = HealHeader::of(text);
        (void)HealHeader::of(header.to_text());
        return;
      }
      case 4: {
        const auto tensors = zeros_of_shapes(text, at::kCPU, 1 << 20);
        if (zeros_of_shapes(shapes_of(tensors), at::kCPU, 1 << 20).size() != tensors.size()) std::abort();
        return;
      }
      case 5: {
        const auto word = FailureWord::of(text);
        (void)word.record.describe();
        if (FailureWord::of(word.to_bytes()).record.fingerprint() != word.record.fingerprint()) std::abort();
        return;
      }
      default: {
        const auto state = RankState::from_json(text, "rank-00000.json");
        if (!(RankState::from_json(state.to_json(), "rank-00000.json") == state)) std::abort();
        return;
      }
    }
  });
}
