#include "launch/compiled/compiled_file.hpp"

#include <sys/stat.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "launch/network/sha256.hpp"
#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/launch/compiled/made_model.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using troupe::testing::ScratchDirectory;

namespace {

std::string sha256(std::string_view text) {
  Sha256 digest;
  digest.add(text);
  return digest.hex();
}

// A file with code that is none.
struct MadeFile {
  nlohmann::json manifest = test::made_manifest();
  std::string sections;

  MadeFile() {
    manifest["torch"] = TORCH_VERSION;
    for (const char* name : {"0.forward", "0.backward", "values"}) {
      const std::string content = std::string("content of ") + name;
      manifest["sections"].push_back(
          {{"name", name}, {"offset", sections.size()}, {"size", content.size()}, {"sha256", sha256(content)}});
      sections += content;
    }
  }
  std::string write(const ScratchDirectory& folder, mode_t mode = 0644) const {
    const auto text = manifest.dump();
    const std::uint64_t size = text.size();
    std::string bytes = "TROUPEM1" + std::string(sizeof size, '\0');
    std::memcpy(bytes.data() + 8, &size, sizeof size);
    auto path = folder / "m.tm";
    std::ofstream(path, std::ios::binary) << bytes << text << sections;
    ::chmod(path.c_str(), mode);
    return path;
  }
};

std::string refusal_of(const std::string& path, ErrorCode code) {
  try {
    const CompiledFile file(path);
    (void)file.section_in_memory("0.forward");
    return "accepted";
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
}

}  // namespace

TEST_CASE("[U07] SHA-256 of bytes in parts is that of FIPS 180-4") {
  Sha256 digest;
  digest.add("a");
  digest.add("bc");
  CHECK(digest.hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("[U07] a compiled model's code is opened from memory, under another name each time") {
  const ScratchDirectory folder;
  const CompiledFile file(MadeFile().write(folder));
  const auto first = file.section_in_memory("0.forward"), second = file.section_in_memory("0.backward");
  CHECK(first->path() != second->path());
  std::ifstream opened(second->path());
  CHECK(std::string(std::istreambuf_iterator<char>(opened), {}) == "content of 0.backward");
  std::string used;
  { used = file.section_in_memory("0.forward")->path(); }
  CHECK(file.section_in_memory("0.forward")->path() != used);  // the descriptor has the same number again
}

TEST_CASE("[U07] a compiled model that others may change, or that was changed, is refused") {
  using Catch::Contains;
  const ScratchDirectory folder;
  MadeFile made;
  CHECK(refusal_of(made.write(folder), ErrorCode::ok) == "accepted");
  CHECK_THAT(refusal_of(made.write(folder, 0666), ErrorCode::bad_data), Contains("may be changed by other users"));
  CHECK_THAT(refusal_of(made.write(folder, 0664), ErrorCode::bad_data), Contains("chmod go-w"));
  if (::geteuid() == 0) {
    const auto path = made.write(folder);
    REQUIRE(::chown(path.c_str(), 12345, 12345) == 0);
    CHECK(refusal_of(path, ErrorCode::bad_data).find("belongs to another user (12345)") != std::string::npos);
    REQUIRE(::unlink(path.c_str()) == 0);
  }
  made.sections[3] ^= 1;
  CHECK_THAT(refusal_of(made.write(folder), ErrorCode::bad_data),
             Contains("its section '0.forward' does not match its checksum"));
  made.sections.resize(10);
  CHECK_THAT(refusal_of(made.write(folder), ErrorCode::bad_data), Contains("ends before its section"));
  made = MadeFile();
  made.manifest["torch"] = "1.0";
  CHECK_THAT(refusal_of(made.write(folder), ErrorCode::unavailable), Contains("compiled for LibTorch 1.0"));
  const auto path = folder / "m.tm";
  std::ofstream(path, std::ios::binary) << "TROUPEM1" << std::string(8, '\xff');
  CHECK_THAT(refusal_of(path, ErrorCode::bad_data), Contains("it claims a manifest of"));
  std::ofstream(path, std::ios::binary) << "PK\x03\x04 and more than sixteen bytes";
  CHECK_THAT(refusal_of(path, ErrorCode::bad_data), Contains("not a compiled model"));
}

TEST_CASE("[U07] the processor's extensions that code needs are named if they are missing") {
  constexpr const char* kText = "processor\t: 0\nflags\t\t: fpu avx avx2 fma\nbugs\t\t: none\n";
  CHECK(missing_instructions({"avx", "fma"}, kText).empty());
  CHECK(missing_instructions({"avx2", "avx512f", "amx_tile"}, kText) == "avx512f, amx_tile");
  CHECK(missing_instructions({"none"}, kText) == "none");
  CHECK(missing_instructions({"avx"}, "Features : asimd\n").empty());
}
