#include "tensor_io/checkpoint/plain_archive.hpp"

#include <caffe2/serialize/inline_container.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Contains;

namespace {

// Pieces of a pickle of protocol 2.
std::string little_endian(std::uint64_t number, std::size_t bytes) {
  return {reinterpret_cast<const char*>(&number), bytes};
}
std::string text(const std::string& value) { return "X" + little_endian(value.size(), 4) + value; }
std::string number(std::int64_t value) { return "\x8a\x08" + little_endian(static_cast<std::uint64_t>(value), 8); }
std::string tuple(const std::vector<std::string>& values) {
  std::string all = "(";
  for (const auto& value : values) all += value;
  return all + "t";
}
std::string numbers(const std::vector<std::int64_t>& values) {
  std::vector<std::string> all;
  for (const auto value : values) all.push_back(number(value));
  return tuple(all);
}
std::string call(const std::string& name, const std::vector<std::string>& arguments) {
  return "c" + name + "\n" + tuple(arguments) + "R";
}

/// What a file says of a tensor; as it is, a tensor of 8 elements in a storage of 8.
struct Tensor {
  std::string type = "torch\nFloatStorage", key = "0";
  std::int64_t elements = 8, offset = 0;
  std::vector<std::int64_t> sizes{8}, strides{1};

  std::string storage() const {
    return tuple({text("storage"), "c" + type + "\n", text(key), text("cpu"), number(elements)}) + "Q";
  }
  std::string pickled(const std::string& rebuild = "torch._utils\n_rebuild_tensor_v2") const {
    return call(rebuild, {storage(), number(offset), numbers(sizes), numbers(strides), "\x89",
                          call("collections\nOrderedDict", {})});
  }
};

std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string all = "}(";
  for (const auto& [name, value] : items) all += text(name) + value;
  return all + "u";
}

using Records = std::map<std::string, std::string>;

const Records& eight_floats() {
  static const Records records{{"data/0", [] {
                                  const auto values = torch::arange(8, torch::kFloat);
                                  return std::string(static_cast<const char*>(values.data_ptr()), values.nbytes());
                                }()}};
  return records;
}

struct Archive {
  ScratchDirectory scratch;
  const std::string path = scratch / "model.pt";

  explicit Archive(const std::string& value, const Records& records = eight_floats()) {
    std::string bytes;
    {
      caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t count) {
        bytes.append(static_cast<const char*>(data), count);
        return count;
      });
      const auto pickle = "\x80\x02" + value + ".";
      writer.writeRecord("data.pkl", pickle.data(), pickle.size());
      for (const auto& [name, record] : records) writer.writeRecord(name, record.data(), record.size());
      writer.writeEndOfFile();
    }
    write_text(path, bytes);
  }
  NamedTensors load() const { return load_plain_archive(path); }
  std::string refusal() const {
    try {
      (void)load();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_data);
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      CHECK_THAT(error.what(), Contains(path));
      return error.what();
    }
    return "no error";
  }
};

std::string refusal_of(const Tensor& tensor) { return Archive(dict({{"layer.weight", tensor.pickled()}})).refusal(); }

}  // namespace

TEST_CASE("[K03] a .pt whose tensor reaches an element outside of its storage is refused by name") {
  constexpr auto kHuge = std::int64_t{1} << 62;
  const auto [why, tensor] = GENERATE(table<std::string, Tensor>({
      {"has 256 elements, and its storage 8", {.sizes = {256}}},
      {"has 589824 elements, and its storage 1",
       {.elements = 1, .sizes = {256, 256, 3, 3}, .strides = {2304, 9, 3, 1}}},
      {"has 4 elements, and its storage 1", {.elements = 1, .sizes = {4}, .strides = {0}}},
      {"reaches from element 1 to 8 of a storage of 8", {.offset = 1}},
      {"reaches from element 0 to 9 of a storage of 8", {.sizes = {4}, .strides = {3}}},
      {"reaches from element 0 to 8 of a storage of 8", {.sizes = {2, 3}, .strides = {4, 2}}},
      {"reaches from element -1 to 6", {.offset = -1}},
      {"reaches from element 9 to 9", {.offset = 9, .sizes = {0}}},
      {"has a negative stride", {.offset = 7, .strides = {-1}}},
      {"has a negative size", {.sizes = {-8}}},
      {"has a negative size", {.sizes = {-2, -4}, .strides = {4, 1}}},
      {"has more bytes than 63 bits can count", {.sizes = {4194305, 4194305, 211106198978564}, .strides = {0, 0, 0}}},
      {"has more bytes than 63 bits can count", {.sizes = {0, kHuge}, .strides = {1, 1}}},
      {"reaches more elements than 63 bits can count", {.sizes = {3}, .strides = {kHuge}}},
      {"reaches more elements than 63 bits can count", {.offset = kHuge, .sizes = {2}, .strides = {kHuge}}},
      {"has 1 sizes and 2 strides", {.strides = {1, 1}}},
      {"has 65 sizes", {.sizes = std::vector<std::int64_t>(65, 1), .strides = std::vector<std::int64_t>(65, 1)}},
      {"has a storage of 9 elements, and the file 32 bytes for it", {.elements = 9, .sizes = {9}}},
      {"has a storage of -1 elements", {.elements = -1}},
      {"has a storage of 4611686018427387904 elements", {.elements = kHuge}},
      {"has a storage of 8 elements, and the file 32 bytes for it", {.type = "torch\nDoubleStorage"}},
      {"has a storage of 8 elements, and the file 0 bytes for it", {.key = "1"}},
      {"has a type that Troupe does not know, 'torch.QInt8Storage'", {.type = "torch\nQInt8Storage"}},
      {"has a type that Troupe does not know, 'torch.storage.UntypedStorage'",
       {.type = "torch.storage\nUntypedStorage"}},
  }));
  INFO(why);
  CHECK_THAT(refusal_of(tensor), Contains("tensor 'layer.weight' " + why));
}

TEST_CASE("[K03] a .pt whose tensor reaches just its storage's last element is read") {
  const auto [tensor, values] = GENERATE(table<Tensor, std::vector<float>>({
      {{.offset = 7, .sizes = {1}}, {7}},
      {{.offset = 8, .sizes = {0}}, {}},
      {{.sizes = {2, 2}, .strides = {1, 6}}, {0, 6, 1, 7}},
      {{.offset = 1, .sizes = {3}, .strides = {3}}, {1, 4, 7}},
      {{.offset = 3, .sizes = {}, .strides = {}}, {3}},
      {{.sizes = {2, 3}, .strides = {3, 0}}, {0, 0, 0, 3, 3, 3}},
      {{.elements = 0, .sizes = {0}}, {}},
  }));
  const auto read = Archive(dict({{"w", tensor.pickled()}})).load();
  REQUIRE(read.size() == 1);
  CHECK((read[0].second.sizes() == at::IntArrayRef(tensor.sizes) &&
         read[0].second.flatten().equal(torch::tensor(values, torch::kFloat))));
}

TEST_CASE("[C05] what torch.save of Python wrote is read: views, parameters, nested and skipped values") {
  // torch.save of PyTorch 2.11, with a = torch.arange(6.):
  // {"a": a.view(2, 3), "b": {"t": a.view(2, 3).t()[1:]}, "list": [tensor([True, False]), (1, 0.5, None, True)],
  //  "p": Parameter(a[2:4]), 5: "x"}
  using namespace std::string_literals;
  const auto pickle =
      "}q\x00(X\x01\x00\x00\x00"
      "aq\x01"
      "ctorch._utils\n_rebuild_tensor_v2\nq\x02((X\x07\x00\x00\x00storageq\x03"
      "ctorch\nFloatStorage\nq\x04X\x01\x00\x00\x00"
      "0q\x05X\x03\x00\x00\x00"
      "cpuq\x06K\x06tq\x07QK\x00K\x02K\x03\x86"
      "q\x08K\x03K\x01\x86q\t\x89"
      "ccollections\nOrderedDict\nq\n)Rq\x0btq\x0cRq\rX\x01\x00\x00\x00"
      "bq\x0e}q\x0fX\x01"
      "\x00\x00\x00tq\x10h\x02((h\x03h\x04h\x05h\x06K\x06tq\x11QK\x01K\x02K\x02\x86q\x12K\x01K\x03\x86q\x13\x89h\n)R"
      "q\x14tq\x15Rq\x16sX\x04\x00\x00\x00listq\x17]q\x18(h\x02((h\x03"
      "ctorch\nBoolStorage\nq\x19X\x01\x00\x00\x00"
      "1"
      "q\x1ah\x06K\x02tq\x1bQK\x00K\x02\x85q\x1cK\x01\x85q\x1d\x89h\n)Rq\x1etq\x1fRq (K\x01G?\xe0\x00\x00\x00\x00\x00"
      "\x00N\x88tq!eX\x01\x00\x00\x00pq\"ctorch._utils\n_rebuild_parameter\nq#h\x02((h\x03h\x04h\x05h\x06K\x06tq$QK"
      "\x02K\x02\x85q%K\x01\x85q&\x89h\n)Rq'tq(Rq)\x88h\n)Rq*\x87q+Rq,K\x05X\x01\x00\x00\x00xq-u"s;
  auto records = eight_floats();
  records["data/0"].resize(24);
  records["data/1"] = "\x01\x00"s;
  records["byteorder"] = "little";
  const Archive archive(pickle, records);
  std::vector<std::string> skipped;
  const auto read = load_plain_archive(archive.path, &skipped);
  const auto a = torch::arange(6, torch::kFloat);
  const NamedTensors expected{{"a", a.view({2, 3})},
                              {"b.t", a.view({2, 3}).t().slice(0, 1)},
                              {"list.0", torch::tensor({true, false})},
                              {"p", a.slice(0, 2, 4)}};
  REQUIRE(read.size() == expected.size());
  for (std::size_t i = 0; i < read.size(); ++i) {
    INFO(expected[i].first);
    CHECK(read[i].first == expected[i].first);
    CHECK(
        (read[i].second.scalar_type() == expected[i].second.scalar_type() && read[i].second.equal(expected[i].second)));
  }
  CHECK(skipped == std::vector<std::string>{"list.1.0", "list.1.1", "list.1.2", "list.1.3", "5"});
  CHECK(read[0].second.storage().is_alias_of(read[1].second.storage()));

  records["byteorder"] = "big";
  CHECK_THAT(Archive(pickle, records).refusal(), Contains("is not little-endian"));
  records.erase("byteorder");
  records["data/1"] = "\x01\x02"s;
  CHECK_THAT(Archive(pickle, records).refusal(), Contains("tensor 'list.0' holds values that are neither"));
}

TEST_CASE("[C05] what torch::save of C++ wrote is no dict, and is refused with the remedies") {
  const ScratchDirectory scratch;
  torch::save(std::vector<at::Tensor>{torch::ones({2})}, scratch / "list.pt");
  CHECK_THROWS_WITH(load_plain_archive(scratch / "list.pt"), Contains("list.pt") && Contains("Python class") &&
                                                                 Contains("torch.save(model.state_dict(), path)"));
}

TEST_CASE("[K03] a .pt with a value that is no plain tensor, or with a pickle that is none, is refused") {
  const auto good = Tensor().pickled();
  const auto memo = [](char opcode) { return std::string{opcode, '\0'}; };
  const auto [value, why] = GENERATE_COPY(table<std::string, std::string>({
      {dict({{"w", Tensor().pickled("torch._utils\n_rebuild_sparse_tensor")}}), "tensor 'w' is sparse"},
      {dict({{"w", Tensor().pickled("torch._utils\n_rebuild_qtensor")}}), "tensor 'w' is sparse, quantized"},
      {dict({{"w", call("os\nsystem", {text("true")})}}), "'w' holds a Python class ('os.system')"},
      {call("collections\nOrderedDict", {}), "holds no tensor"},
      {call("collections\nOrderedDict", {tuple({})}), "holds a Python class ('collections.OrderedDict')"},
      {text("w") + "}b", "a state for something else"},
      {dict({{"w", call("torch._utils\n_rebuild_tensor_v3", {number(1), number(0), numbers({1}), numbers({1})})}}),
       "tensor 'w' is not stored the way"},
      {dict({{"w", call("torch._utils\n_rebuild_tensor_v2", {Tensor().storage(), number(0), numbers({1}), numbers({1}),
                                                             "\x89", "}", dict({{"neg", "\x88"}, {"x", "\x88"}})})}}),
       "tensor 'w' has something that Troupe does not know, 'x'"},
      {dict({{"w", call("torch._utils\n_rebuild_tensor_v2", {Tensor().storage(), number(0), numbers({1}), numbers({1}),
                                                             "\x89", "}", dict({{"conj", "\x88"}})})}}),
       "tensor 'w' has something that Troupe does not know, 'conj'"},
      {dict({{"w", "cos\nsystem\n"}}), "tensor 'w' is a class"},
      {dict({{"w", call("torch._utils\n_rebuild_tensor_v2", {number(1)})}}), "tensor 'w' is not stored the way"},
      {dict({{"w", call("torch._utils\n_rebuild_tensor_v2", {number(1), number(0), numbers({1}), numbers({1})})}}),
       "tensor 'w' is not stored the way"},
      {dict(
           {{"w", call("torch._utils\n_rebuild_tensor_v2", {number(1) + "Q", number(0), numbers({1}), numbers({1})})}}),
       "tensor 'w' has no storage"},
      {dict({{"w", good}, {"w", good}}), "tensor 'w' appears twice"},
      {dict({{"a.b", good}, {"a", dict({{"b", good}})}}), "tensor 'a.b' appears twice"},
      {dict({{"../w", good}}), "the name '../w' looks like a path"},
      {dict({{std::string(5000, 'n'), good}}), "has 5000 bytes, more than the 4096 allowed"},
      {"}(N" + good + "u", "is neither a text nor a number"},
      {"}" + memo('q') + text("self") + memo('h') + "s", "nested deeper than 64"},
      {dict({{"deep", std::string(100'000, ']') + std::string(99'999, 'a')}}), "nested deeper than 64"},
      {dict({{"many", "](" + std::string(1 << 20, 'N') + "e"}}), "more than 1048576 values"},
      {"]", "holds no dict of tensors"},
      {dict({}), "holds no tensor"},
      {"", "nothing is on its stack"},
      {"(u", "nothing is on its stack"},
      {"u", "a mark is missing"},
      {"}(Nu", "items for something else"},
      {"\x86", "too little is on its stack"},
      {"}(s", "too little is on its stack"},
      {"h\x07", "a memo that is empty"},
      {"}q\x07", "a memo with a gap"},
      {"X\xff\xff\xff\xff", "it ends too early"},
      {"\x8a\xff", "it ends too early"},
      {"\x8a\x09" + std::string(9, '\1'), "a number of more than 64 bits"},
      {"cos", "a name without an end"},
      {"NNR", "a call of something that is not a function"},
      {"\x80\x04", "protocol 4, Troupe reads 2"},
      {"i", "opcode 105, which Troupe does not know"},
  }));
  INFO(why);
  CHECK_THAT(Archive(value).refusal(), Contains(why));
}

TEST_CASE("[K03] a .pt whose zip directory lies is refused") {
  const Archive archive(dict({{"w", Tensor().pickled()}}));
  const auto good = read_text(archive.path);
  const auto damaged = [&](const std::function<void(std::string&)>& damage) {
    auto bytes = good;
    damage(bytes);
    write_text(archive.path, bytes);
    return archive.refusal();
  };
  const auto entry = [](const std::string& bytes, const std::string& name) {
    for (auto at = bytes.find("PK\1\2"); at != bytes.npos; at = bytes.find("PK\1\2", at + 1)) {
      if (bytes.compare(at + 46, name.size(), name) == 0) return at;
    }
    FAIL("no entry " << name);
    return bytes.npos;
  };
  const std::string storage = "archive/data/0", pickle = "archive/data.pkl";
  CHECK_THAT(damaged([&](auto& bytes) { bytes[entry(bytes, pickle) + 10] = 8; }),
             Contains("is compressed or encrypted"));
  CHECK_THAT(damaged([&](auto& bytes) { bytes[entry(bytes, pickle) + 8] ^= 1; }),
             Contains("is compressed or encrypted"));
  CHECK_THAT(damaged([&](auto& bytes) { bytes[entry(bytes, pickle) + 46 + 15] ^= 1; }),
             Contains("it holds no data.pkl"));
  CHECK_THAT(damaged([&](auto& bytes) {
               for (const std::size_t at : {20, 24})
                 bytes.replace(entry(bytes, storage) + at, 4, "\xf0\xff\xff\x7f", 4);
             }),
             Contains("its files have more bytes than the archive"));
  CHECK_THAT(damaged([&](auto& bytes) { bytes.replace(entry(bytes, storage) + 24, 4, "\xff\xff\xff\xff", 4); }),
             Contains("cannot be read"));
  CHECK_THAT(damaged([&](auto& bytes) { bytes.replace(entry(bytes, storage) + 42, 4, "\xf0\xff\xff\x7f", 4); }),
             Contains("it points to offset 2147483632"));
  CHECK_THAT(damaged([&](auto& bytes) { bytes.replace(entry(bytes, storage) + 42, 4, std::string(4, '\1')); }),
             Contains("cannot be read"));
  CHECK_THAT(damaged([&](auto& bytes) { bytes[bytes.rfind("PK\6\6") + 48] ^= 1; }),
             Contains("its directory is not one"));
  CHECK_THAT(damaged([&](auto& bytes) { bytes.replace(bytes.rfind("PK\6\6") + 40, 8, 8, '\x7f'); }),
             Contains("its directory has 9187201950435737471 bytes"));
  CHECK_THAT(damaged([&](auto& bytes) { bytes.resize(bytes.rfind("PK\5\6")); }),
             Contains("the directory at its end is missing"));
  write_text(archive.path, good);
  CHECK(archive.load().size() == 1);
}
