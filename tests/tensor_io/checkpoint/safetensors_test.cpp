#include "tensor_io/checkpoint/safetensors.hpp"

#include <sys/stat.h>
#include <torch/torch.h>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/safetensors_folder.hpp"
#include "tensor_io/checkpoint/safetensors_index.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using troupe::testing::read_text;
using troupe::testing::ScratchDirectory;
using troupe::testing::write_text;

namespace {

std::string with_length(const std::string& header, const std::string& data = {}) {
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    length[i] = static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  return length + header + data;
}

// The message of the refusal, or empty if the file was accepted.
std::string refusal(const std::string& path) {
  try {
    load_safetensors(path);
    return {};
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_data);
    CHECK_THAT(error.what(), Catch::Contains(path));
    return error.what();
  }
}

NamedTensors one_of_each_dtype() {
  NamedTensors tensors;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                           at::kChar, at::kByte, at::kBool}) {
    tensors.emplace_back(std::string("z.") + c10::toString(dtype), torch::arange(7, at::kFloat).fmod(2).to(dtype));
  }
  return tensors;
}

}  // namespace

TEST_CASE("[C01] safetensors hands back names, dtypes, shapes and values bit by bit") {
  const ScratchDirectory scratch;
  auto tensors = one_of_each_dtype();
  tensors.emplace_back("a.scalar", torch::tensor(3.5));
  tensors.emplace_back("b.empty", torch::empty({0, 4}));
  tensors.emplace_back("c.transposed", torch::arange(6).view({2, 3}).t());
  tensors.emplace_back("d.nan", torch::tensor({std::nanf("7"), -0.0f}));
  tensors.emplace_back("e.large", torch::arange(3'000'000, at::kInt));
  save_safetensors(scratch / "x.safetensors", tensors, {{"who", "me"}});

  const SafetensorsFile file(scratch / "x.safetensors");
  CHECK(file.metadata().at("who") == "me");
  CHECK(file.metadata().at("format") == "pt");
  REQUIRE(file.entries().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    const auto* entry = file.find(name);
    REQUIRE(entry != nullptr);
    CHECK(entry->dtype == tensor.scalar_type());
    CHECK((entry->shape == tensor.sizes().vec()));
    CHECK(entry->begin % tensor.element_size() == 0);
    const auto read = file.read(*entry);
    const auto expected = tensor.contiguous();
    CHECK((expected.nbytes() == 0 ||
           std::memcmp(read.const_data_ptr(), expected.const_data_ptr(), expected.nbytes()) == 0));
  }
  CHECK(file.find("nobody") == nullptr);
}

TEST_CASE("[C01] a range of a tensor is read without the rest") {
  const ScratchDirectory scratch;
  save_safetensors(scratch / "x.safetensors", {{"a", torch::zeros(5)}, {"b", torch::arange(100, at::kInt)}});
  const SafetensorsFile file(scratch / "x.safetensors");
  std::int32_t values[2] = {};
  file.read_bytes(*file.find("b"), 40, std::as_writable_bytes(std::span(values)));
  CHECK(values[0] == 10);
  CHECK(values[1] == 11);
  CHECK_THROWS_WITH(file.read_bytes(*file.find("b"), 396, std::as_writable_bytes(std::span(values))),
                    Catch::Contains("'b'"));
}

TEST_CASE("a safetensors file carries the keys of PyTorch's distributed checkpoint") {
  const ScratchDirectory scratch;
  DurableFile file(real_files(), scratch / "shard.safetensors");
  write_safetensors(file, {whole_part("v", torch::ones(2)), rows_part("w", torch::ones({6, 3}), 4, 6)});
  file.finish();
  const SafetensorsFile read(scratch / "shard.safetensors");
  CHECK(read.metadata().at("DCP_VERSION") == "1.0");
  CHECK(read.metadata().at("DCP_SHARDING_INFO") == R"({"v":{"saved_offsets":[0]},"w":{"saved_offsets":[4,0]}})");
}

TEST_CASE("a safetensors file is replaced as a whole or not at all") {
  const ScratchDirectory scratch;
  save_safetensors(scratch / "x.safetensors", {{"a", torch::zeros(5)}});
  CHECK_THROWS_AS(save_safetensors(scratch / "x.safetensors", {{"a", torch::zeros(5)}, {"a", torch::zeros(5)}}), Error);
  CHECK(load_safetensors(scratch / "x.safetensors").size() == 1);
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path()), std::filesystem::directory_iterator()) == 1);
}

TEST_CASE("a tensor that the format cannot hold is named") {
  const ScratchDirectory scratch;
  const auto path = scratch / "x.safetensors";
  CHECK_THROWS_WITH(save_safetensors(path, {{"c", torch::zeros(2, at::kComplexDouble)}}),
                    Catch::Contains("'c'") && Catch::Contains("ComplexDouble"));
  CHECK_THROWS_WITH(save_safetensors(path, {{"u", at::Tensor()}}), Catch::Contains("'u'"));
  CHECK_THROWS_WITH(save_safetensors(path, {{"", torch::zeros(2)}}), Catch::Contains("empty"));
  CHECK_THROWS_WITH(save_safetensors(path, {{"\xff", torch::zeros(2)}}), Catch::Contains("UTF-8"));
  CHECK_THROWS_WITH(save_safetensors(scratch / "no/such/folder", {{"a", torch::zeros(2)}}),
                    Catch::Contains("no/such/folder"));
}

TEST_CASE("[C03] a safetensors file cut short at any length is refused") {
  const ScratchDirectory scratch;
  save_safetensors(scratch / "whole", one_of_each_dtype());
  const auto text = read_text(scratch / "whole");
  for (std::size_t length = 0; length < text.size(); ++length) {
    write_text(scratch / "cut", text.substr(0, length));
    INFO(length);
    CHECK_FALSE(refusal(scratch / "cut").empty());
  }
  write_text(scratch / "cut", text + '\0');
  CHECK_THAT(refusal(scratch / "cut"), Catch::Contains("after the last tensor"));
}

TEST_CASE("[C03] a safetensors file with any bit flipped is refused or read within its bounds") {
  const ScratchDirectory scratch;
  save_safetensors(scratch / "whole", {{"a", torch::arange(3)}, {"b", torch::ones({2, 2}, at::kHalf)}});
  const auto text = read_text(scratch / "whole");
  int refused = 0;
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    auto flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    write_text(scratch / "flipped", flipped);
    refused += refusal(scratch / "flipped").empty() ? 0 : 1;
  }
  CHECK(refused > 64);  // at least the length; values have no redundancy here: the manifest's hashes are for those
}

TEST_CASE("[C03] hostile safetensors headers are refused with the tensor and the field") {
  struct Hostile {
    std::string header;
    std::size_t data_bytes;
    std::string reason;
  };
  std::string deep = R"({"a":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  std::string crowd = "{";
  for (int i = 0; i < 100'000; ++i)
    crowd += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  crowd += "}";
  std::string crowd_of_keys = "{";
  for (int i = 0; i < 70'000; ++i) crowd_of_keys += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + R"(":{})";
  crowd_of_keys += "}";
  std::string dimensions = "1";
  for (int i = 0; i < 10'000; ++i) dimensions += ",1";
  auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":")" + dtype + R"(","shape":[)" + shape + R"(],"data_offsets":[)" + offsets + "]}}";
  };
  const Hostile hostiles[] = {
      {"", 0, "offset 8"},
      {"[]", 0, "offset 8"},
      {"{", 0, "not valid JSON at offset 9"},
      {"{\"\xff\":1}", 0, "not valid JSON"},
      {R"({"a":1e999})", 0, "not valid JSON"},
      {deep, 0, "nested deeper"},
      {crowd, 0, "JSON keys"},
      {crowd_of_keys, 0, "70000 tensors"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "'a' appears twice"},
      {R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1, "'dtype' appears twice"},
      {tensor("F32", "4194305,4194305,211106198978564", "0,4"), 4, "63 bits"},
      {tensor("F64", "2305843009213693952", "0,0"), 0, "63 bits"},
      {tensor("F32", "0,4611686018427387904,4", "0,0"), 0, "63 bits"},
      {tensor("F32", "18446744073709551615", "0,4"), 4, "too large"},
      {tensor("F32", "18446744073709551616", "0,4"), 4, "whole number"},
      {tensor("F32", "-1", "0,4"), 4, "'shape'"},
      {tensor("F32", "1.0", "0,4"), 4, "'shape'"},
      {tensor("F32", "\"1\"", "0,4"), 4, "'shape'"},
      {tensor("F32", dimensions, "0,4"), 4, "10001 dimensions"},
      {tensor("F32", "1", "4,0"), 4, "before it begins"},
      {tensor("F32", "1", "0,8"), 4, "the file's data at 4"},
      {tensor("F32", "2", "0,4"), 4, "dtype and shape need 8"},
      {tensor("F32", "1", "0"), 4, "not a pair"},
      {tensor("F32", "1", "0,4,8"), 8, "not a pair"},
      {tensor("F32", "1", "0,18446744073709551615"), 4, "'data_offsets'"},
      {tensor("F32", "1", "1,5"), 5, "gap"},
      {tensor("F32", "1", "0,4"), 5, "1 bytes after the last tensor"},
      {tensor("F31", "1", "0,4"), 4, "'F31'"},
      {tensor("f32", "1", "0,4"), 4, "'f32'"},
      {tensor("F4", "1", "0,8"), 8, "'F4'"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       2, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
       2, "overlap"},
      {R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, "'dtype' is missing"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "'shape' is missing"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", 1, "'data_offsets' is missing"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}})", 1, "'more'"},
      {R"({"a":7})", 0, "not an object"},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})", 1, "not a string"},
      {R"({"a":{"dtype":"U8","shape":{"x":1},"data_offsets":[0,1]}})", 1, "not an array"},
      {R"({"../../x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "looks like a path"},
      {R"({"/etc/x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "looks like a path"},
      {R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "is empty"},
      {R"({"a\u0000b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "control characters"},
      {"{\"" + std::string(1 << 20, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "1048576 bytes"},
      {R"({"__metadata__":[]})", 0, "__metadata__"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__"},
      {tensor("F32", "1", "0,4") + "x", 4, "not valid JSON"},
  };
  const ScratchDirectory scratch;
  for (const auto& hostile : hostiles) {
    INFO(hostile.header.substr(0, 200));
    write_text(scratch / "hostile", with_length(hostile.header, std::string(hostile.data_bytes, '\1')));
    const auto message = refusal(scratch / "hostile");
    CHECK_THAT(message, Catch::Contains(hostile.reason));
    CHECK(message.size() < 600);
  }
}

TEST_CASE("[C03] a header longer than the file, or than 100 MB, is refused before anything is allocated") {
  const ScratchDirectory scratch;
  const auto path = scratch / "x";
  for (const std::uint64_t length : {std::uint64_t{17}, std::uint64_t{100'000'000}, std::uint64_t{100'000'001},
                                     ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    std::string text(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(length >> (8 * i));
    write_text(path, text + "{}              ");
    INFO(length);
    CHECK_THAT(refusal(path), Catch::Contains("offset 0") && Catch::Contains(std::to_string(length)));
  }
  for (const std::size_t bytes : {0, 1, 7}) {
    write_text(path, std::string(bytes, '\0'));
    CHECK_THAT(refusal(path), Catch::Contains("too few"));
  }
}

TEST_CASE("tensors without elements may share an offset") {
  const ScratchDirectory scratch;
  write_text(
      scratch / "x",
      with_length(
          R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"F64","shape":[0,9],"data_offsets":[0,0]},"c":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
          "xy"));
  CHECK(load_safetensors(scratch / "x").size() == 3);
}

TEST_CASE("[C03] a bool that is neither false nor true is refused") {
  const ScratchDirectory scratch;
  write_text(scratch / "x",
             with_length(R"({"b":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", std::string("\0\1\2", 3)));
  CHECK_THAT(refusal(scratch / "x"), Catch::Contains("'b'"));
}

TEST_CASE("[R11] a link to a safetensors file is read, as each file of Hugging Face's cache is one") {
  const ScratchDirectory scratch;
  std::filesystem::create_directories(scratch / "blobs");
  save_safetensors(scratch / "blobs/0123", {{"a", torch::ones(2)}});
  std::filesystem::create_symlink("blobs/0123", scratch / "link");
  std::filesystem::create_symlink("link", scratch / "second");
  std::filesystem::create_symlink("loop", scratch / "loop");
  std::filesystem::create_symlink("/dev/zero", scratch / "device");
  for (const std::string name : {"link", "second"})
    CHECK(load_safetensors(scratch / name)[0].second.sum().item<double>() == 2);
  CHECK_THAT(refusal(scratch / "loop"), Catch::Contains("leads to itself"));
  CHECK_THAT(refusal(scratch / "device"), Catch::Contains("not a regular file"));
}

TEST_CASE("[C03] pipes, devices and folders are no safetensors files") {
  const ScratchDirectory scratch;
  REQUIRE(::mkfifo((scratch / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(refusal(scratch / "pipe"), Catch::Contains("not a regular file"));
  CHECK_THAT(refusal("/dev/zero"), Catch::Contains("not a regular file"));
  CHECK_THAT(refusal(scratch.path()), Catch::Contains("not a regular file"));
  CHECK_THAT(refusal(scratch / "nothing"), Catch::Contains("is missing"));
}

TEST_CASE("[C03] a file that is cut short while it is read is an error, not a crash") {
  const ScratchDirectory scratch;
  save_safetensors(scratch / "x", {{"a", torch::zeros(100'000)}});
  const SafetensorsFile file(scratch / "x");
  std::filesystem::resize_file(scratch / "x", 5000);
  CHECK_THROWS_WITH(file.read(file.entries()[0]), Catch::Contains("ends at offset 5000"));
}

TEST_CASE("[C03] pickles and archives are refused by their first bytes, with the remedy") {
  const ScratchDirectory scratch;
  const std::string tar = std::string(257, 'x') + "ustar" + std::string(300, '\0');
  const std::pair<std::string, std::string> files[] = {
      {std::string("PK\x03\x04\x00\x00\x08\x08", 8) + std::string(100, 'x'), "torch.save"},
      {std::string("\x80\x02\x8a\nl\xfc\x9c", 7) + std::string(100, 'x'), "pickle"},
      {std::string("\x80\x04\x95", 3) + std::string(100, 'x'), "pickle"},
      {tar, "tar archive"}};
  for (const auto& [text, what] : files) {
    write_text(scratch / "model.pt", text);
    CHECK_THAT(refusal(scratch / "model.pt"), Catch::Contains(what) && Catch::Contains("safetensors.torch.save_file"));
  }
  SECTION("but a header of 640 bytes, which starts like a pickle, is fine") {
    std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    header.resize(640, ' ');
    write_text(scratch / "x", with_length(header, "x"));
    CHECK(refusal(scratch / "x").empty());
  }
}

TEST_CASE(
    "[C05] a folder of safetensors files is read as whole tensors: of Hugging Face, of torch.distributed.checkpoint") {
  const ScratchDirectory scratch;
  const auto whole = torch::arange(24, torch::kFloat).view({4, 6});
  const auto write = [&](const std::string& name, const std::vector<TensorPart>& parts) {
    DurableFile file(real_files(), scratch / name);
    write_safetensors(file, parts);
    file.finish();
  };
  CHECK_FALSE(holds_safetensors(scratch.path()));
  save_safetensors(scratch / "model-00001-of-00001.safetensors", {{"a", torch::ones(3)}, {"b", torch::zeros({0, 2})}});
  write("shard-00000.safetensors", {rows_part("w", whole, 0, 3)});
  CHECK(holds_safetensors(scratch.path()));
  SECTION("all there") {
    write("shard-00001.safetensors", {rows_part("w", whole, 3, 4)});
    const auto read = read_safetensors_folder(scratch.path());
    REQUIRE(read.size() == 3);
    CHECK((read[0].second.equal(torch::ones(3)) && read[1].second.sizes() == at::IntArrayRef({0, 2}) &&
           read[2].second.equal(whole)));
  }
  SECTION("a gap") {
    write("shard-00001.safetensors", {rows_part("w", torch::zeros({8, 6}), 5, 8)});
    CHECK_THROWS_WITH(read_safetensors_folder(scratch.path()),
                      Catch::Contains("'w'") && Catch::Contains("not covered"));
  }
  SECTION("an overlap") {
    write("shard-00001.safetensors", {rows_part("w", whole, 2, 4)});
    CHECK_THROWS_WITH(read_safetensors_folder(scratch.path()), Catch::Contains("'w'"));
  }
  SECTION("offsets that are none") {
    for (const std::string offsets :
         {"[-1,0]", "[4]", "[4611686018427387905,0]", "[9223372036854775807,0]", R"([\"4\",0])", "{}", "4"}) {
      INFO(offsets);
      save_safetensors(scratch / "shard-00001.safetensors", {{"v", whole}});
      auto text = read_text(scratch / "shard-00001.safetensors");
      const auto at = text.find("[0,0]", text.find("saved_offsets"));
      REQUIRE(at < 4096);
      text.replace(at, 5, offsets);
      // The header keeps its length: spaces at its end make room.
      const auto end = 4096 + offsets.size() - 5;
      if (offsets.size() >= 5) {
        text.erase(4096, offsets.size() - 5);
      } else {
        text.insert(end, std::string(5 - offsets.size(), ' '));
      }
      write_text(scratch / "shard-00001.safetensors", text);
      CHECK_THROWS_WITH(read_safetensors_folder(scratch.path()), Catch::Contains("saved_offsets"));
    }
  }
}
