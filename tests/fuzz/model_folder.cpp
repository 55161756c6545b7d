// A folder of another program's safetensors files: the index of Hugging Face, and the files that it names.
#include "tensor_io/checkpoint/safetensors_folder.hpp"
#include "tensor_io/checkpoint/safetensors_index.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

// The first byte: even, the rest is the index beside two good files; odd, the rest is one of two files without an
// index.
TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  static const fuzz::InputFile first("model-00001-of-00002.safetensors");
  if (bytes < 1) return 0;
  const auto content = fuzz::text_of(data + 1, bytes - 1);
  const auto& folder = first.folder();
  const auto write = [&](const char* name, std::string_view text) {
    std::ofstream(folder / name, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
  };
  const auto file_of = [](const std::string& name) {
    const auto header = R"({")" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    return std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header + "x";
  };
  std::filesystem::remove(folder / "model.safetensors.index.json");
  first.write(file_of("a"));
  write("model-00002-of-00002.safetensors", data[0] % 2 == 0 ? std::string_view(file_of("b")) : content);
  if (data[0] % 2 == 0) write("model.safetensors.index.json", content);
  return fuzz::try_input([&] {
    std::vector<std::string> notes;
    for (const auto& name : index_of_folder(folder.string()).files) {
      if (name.find('/') != name.npos) std::abort();  // no name leads out of the folder
    }
    (void)read_safetensors_folder(folder.string(), &notes);
  });
}
