// What readers make of the names of files: parts of a data set, patterns, and what is passed over and said.
#include "tensor_io/data/file_names.hpp"

#include <filesystem>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/bad_samples.hpp"
#include "tensor_io/data/image_folder.hpp"
#include "tensor_io/data/webdataset.hpp"
#include "tensor_io/files/braces.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

std::string member(const std::string& name, const std::string& content) {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  const auto octal = [](std::size_t number, int digits) {
    std::string text(static_cast<std::size_t>(digits), '0');
    for (auto i = text.size(); i-- > 0; number /= 8) text[i] = static_cast<char>('0' + number % 8);
    return text;
  };
  put(0, name);
  put(100, "0000644");
  put(124, octal(content.size(), 11));
  put(136, octal(0, 11));
  put(148, "        ");
  put(156, "0");
  put(257, std::string("ustar\0", 6) + "00");
  std::size_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, octal(sum, 6) + std::string("\0 ", 2));
  return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

std::string samples(int count, const std::string& more = "") {
  std::string tar = more;
  for (int i = 0; i < count; ++i)
    tar += member(std::to_string(i) + ".cls", "1") + member(std::to_string(i) + ".png", "x");
  return tar + std::string(1024, '\0');
}

DataOptions options(const std::string& folder) {
  DataOptions made;
  made.data_dir = folder;
  return made;
}

void touch(const std::string& folder, const std::string& name, const std::string& extension, int count) {
  std::filesystem::create_directories(folder + "/" + name);
  for (int i = 0; i < count; ++i) testing::write_text(folder + "/" + name + "/" + std::to_string(i) + extension, "x");
}

}  // namespace

TEST_CASE("[D10] names of parts are known as whole names, and as words in names") {
  for (const char* name : {"train", "Training", "TRAIN"}) CHECK(part_named(name) == PartName::train);
  for (const char* name : {"val", "valid", "validation", "dev", "Val"}) CHECK(part_named(name) == PartName::validation);
  for (const char* name : {"test", "testing", "eval", "evaluation"}) CHECK(part_named(name) == PartName::test);
  for (const char* name : {"", "cat", "trains", "val2", "seg_train"}) CHECK(part_named(name) == PartName::none);
  CHECK(part_in_name("seg_train") == PartName::train);
  CHECK(part_in_name("imagenet-val-000.tar") == PartName::validation);
  CHECK(part_in_name("val000.tar") == PartName::validation);
  CHECK(part_in_name("a.test") == PartName::test);
  for (const char* name : {"", "interval-0.tar", "valley", "contest_1.tar", "retrain", "0.tar"})
    CHECK(part_in_name(name) == PartName::none);
}

TEST_CASE("[D9] what is passed over is counted by kind, the most frequent first") {
  PassedOver passed;
  CHECK(passed.to_string().empty());
  passed.add("a/b.BMP");
  CHECK(passed.to_string() == "1 file passed over (.bmp 1)");
  for (const char* name : {"x.bmp", "a/.DS_Store", "._x.jpg", "README", "a.b/README", "x.a\nb"}) passed.add(name);
  CHECK(passed.to_string() == "7 files passed over (.bmp 2, hidden 2, without extension 2, .a?b 1)");
  PassedOver more;
  more.add("x.webp");
  more.add_all(passed);
  CHECK(more.count() == 8);
  CHECK(more.count({".bmp", ".webp", ".gif"}) == 3);
  CHECK_THAT(more.to_string(), Catch::Contains(", ...)"));
}

TEST_CASE("[D6] [D9] the line of a folder of pictures names what was passed over and how it was split") {
  testing::ScratchDirectory folder;
  touch(folder.path(), "cat", ".jpg", 7);
  touch(folder.path(), "dog", ".PNG", 4);
  touch(folder.path(), "dog", ".bmp", 2);
  auto [train, held_out] = read_image_folder(options(folder.path()));
  CHECK(train->description() == "image_folder, 11 pictures in 2 classes; 2 files passed over (.bmp 2)");
  CHECK(train->size() == 9);
  CHECK(held_out->description() == "every 5th");
  testing::ScratchDirectory parts;
  for (const char* name : {"training/cat", "training/dog", "testing/dog"}) touch(parts.path(), name, ".jpg", 2);
  touch(parts.path(), "extra", ".jpg", 1);
  std::tie(train, held_out) = read_image_folder(options(parts.path()));
  CHECK(train->description() == "image_folder, 6 pictures in 2 classes; folder extra not read");
  CHECK(train->size() == 4);
  CHECK(held_out->description() == "testing");
}

TEST_CASE("[D4] [D6] the line of tar shards names what was passed over and how they were split") {
  testing::ScratchDirectory folder;
  testing::write_text(folder / "interval-0.tar", samples(19, member("README.md", "x") + member("._0.cls", "x")));
  testing::write_text(folder / "._interval-0.tar", "x");
  auto [train, held_out] = read_webdataset(options(folder.path()));
  CHECK(train->description() == "webdataset, 1 shard with 19 samples; 2 files passed over (.md 1, hidden 1)");
  CHECK(held_out == nullptr);
  testing::write_text(folder / "test-0.tar", samples(3));
  std::tie(train, held_out) = read_webdataset(options(folder.path()));
  CHECK(train->size() == 19);
  CHECK(held_out->size() == 3);
  CHECK(held_out->description() == "1 shard named test");
  testing::write_text(folder / "a_val.tar", samples(2));
  std::tie(train, held_out) = read_webdataset(options(folder.path()));
  CHECK_THAT(train->description(),
             Catch::Contains("3 shards with 21 samples") && Catch::Contains("1 shard named test not read"));
  CHECK(held_out->size() == 2);
  SECTION("a compressed shard beside the plain one is passed over, another is refused") {
    testing::write_text(folder / "test-0.tar.gz", "x");
    CHECK(read_webdataset(options(folder.path() + "/")).first->size() == 19);
    testing::write_text(folder / "test-1.tar.gz", "x");
    CHECK_THROWS_WITH(read_webdataset(options(folder.path())), Catch::Contains("test-1.tar.gz: it is compressed"));
  }
  SECTION("the names of folders count in a pattern of several") {
    for (const char* name : {"train", "val"}) {
      std::filesystem::create_directory(folder / name);
      testing::write_text(folder / (std::string(name) + "/0.tar"), samples(2));
    }
    std::tie(train, held_out) = read_webdataset(options(folder / "{train,val}/0.tar"));
    CHECK(train->size() == 2);
    CHECK(held_out->size() == 2);
    CHECK(read_webdataset(options(folder / "val/0.tar")).first->size() == 2);
  }
  CHECK_THROWS_WITH(read_webdataset(options(folder / "{test-0,a_val}.tar")), Catch::Contains("all say val or test"));
  CHECK_THROWS_WITH(read_webdataset(options(folder / "test-{0,0}.tar")), Catch::Contains("is named twice"));
  CHECK_THROWS_WITH(read_webdataset(options(folder / "test-*.tar")), Catch::Contains("* and ? are not expanded"));
}

TEST_CASE("[D9] with skip, a sample that holds a member twice ends what is read of its shard") {
  testing::ScratchDirectory folder;
  testing::write_text(folder / "0.tar", member("a.cls", "1") + member("a.png", "x") + member("b.cls", "1") +
                                            member("b.cls", "2") + member("b.png", "x") + std::string(1024, '\0'));
  CHECK_THROWS_WITH(TarShard(folder / "0.tar"),
                    Catch::Contains("sample 'b'") && Catch::Contains("'b.cls' is the second .cls"));
  const TarShard kept(folder / "0.tar", true);
  CHECK(kept.samples().size() == 2);
  CHECK_THAT(kept.cut_off(), Catch::Contains("second .cls"));
}

TEST_CASE("[D9] numbers in braces are as wide as the shell makes them, and groups within groups are refused") {
  CHECK(expand_braces("{8..10}") == std::vector<std::string>{"8", "9", "10"});
  CHECK(expand_braces("{08..10}") == std::vector<std::string>{"08", "09", "10"});
  CHECK(expand_braces("{9..010}") == std::vector<std::string>{"009", "010"});
  CHECK(expand_braces("{0..2}") == std::vector<std::string>{"0", "1", "2"});
  CHECK_THROWS_WITH(expand_braces("{a,b{1..2}}"), Catch::Contains("a group within a group"));
}
