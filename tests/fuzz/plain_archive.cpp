// Files of torch.save from anybody: no tensor reaches out of its storage, and no input takes more memory than it has
// bytes. An input that is no zip archive is taken for the pickle inside of one.
#include "tensor_io/checkpoint/plain_archive.hpp"

#include <vector>

#include "tensor_io/checkpoint/pickle.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

namespace {

void check_reach(const at::Tensor& tensor) {
  auto last = tensor.storage_offset();
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) < 0 || tensor.stride(d) < 0) std::abort();
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  if (tensor.numel() == 0) return;
  const auto element_bytes = static_cast<std::int64_t>(tensor.element_size());
  const auto held = static_cast<std::int64_t>(tensor.storage().nbytes()) / element_bytes;
  if (tensor.storage_offset() < 0 || last >= held || tensor.numel() > held) std::abort();
  static volatile char sum = 0;
  const auto* bytes = static_cast<const char*>(tensor.storage().data());
  for (std::int64_t i = 0; i < element_bytes; ++i) sum = static_cast<char>(sum + bytes[last * element_bytes + i]);
}

}  // namespace

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  static const fuzz::InputFile input("model.pt");
  const auto text = fuzz::text_of(data, bytes);
  return fuzz::try_input([&] {
    if (!text.starts_with("PK")) {
      const Pickle pickle(std::string(text),
                          [](const std::string& why) { throw Error(ErrorCode::bad_data, "a pickle", why); });
      return;
    }
    const auto path = input.write(text);
    std::vector<std::string> skipped;
    for (const auto& [name, tensor] : load_plain_archive(path, &skipped)) check_reach(tensor);
  });
}
