// manifest.json and rank-*.json. The manifest's hash is put right, or nothing behind it would ever be tried.
#include "tensor_io/checkpoint/manifest.hpp"

#include "tensor_io/checkpoint/rank_state.hpp"
#include "tensor_io/files/xxh3.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 1) return 0;
  const auto text = fuzz::text_of(data + 1, bytes - 1);
  return fuzz::try_input([&] {
    if (data[0] % 4 == 0) return (void)RankState::from_json(text, "rank-00000.json");
    if (data[0] % 4 == 1) return (void)Manifest::from_text(text, "manifest.json");
    const std::string body(text);
    const auto kind = data[0] % 4 == 2 ? Manifest::Kind::whole : Manifest::Kind::part;
    const auto manifest =
        Manifest::from_text(body + ",\n  \"xxh3\": \"" + xxh3_text(xxh3(body)) + "\"\n}\n", "manifest.json", kind);
    // What was accepted can be written, and is accepted again.
    (void)Manifest::from_text(manifest.to_text(kind), "manifest.json", kind);
    if (kind == Manifest::Kind::part) (void)merge_manifests({manifest, manifest}, "manifest.json");
  });
}
