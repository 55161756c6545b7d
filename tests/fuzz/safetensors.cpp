// Safetensors files from anybody: whatever the header says, only bytes of the file are read.
#include "tensor_io/checkpoint/safetensors.hpp"

#include <vector>

#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  static const fuzz::InputFile input("model.safetensors");
  const auto path = input.write(fuzz::text_of(data, bytes));
  return fuzz::try_input([&] {
    const SafetensorsFile file(path);
    std::uint64_t end = file.head().size();
    for (const auto& entry : file.entries()) {
      if (entry.begin != end) std::abort();  // the entries tile the file
      end += entry.bytes;
      std::vector<std::byte> values(entry.bytes);
      file.read_bytes(entry, 0, values);
    }
    if (end != file.file().bytes()) std::abort();
  });
}
