#include "launch/config/config.hpp"

#include <fstream>

#include "launch/config/config_fields.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {
Config parse(const std::vector<std::string>& words) {
  Config config;
  config.declare("dropout", 0.1, "of the probe");
  std::vector<const char*> argv{"program"};
  for (const auto& word : words) argv.push_back(word.c_str());
  parse_config(config, static_cast<int>(argv.size()), argv.data());
  return config;
}
std::string refused(const std::vector<std::string>& words) {
  try {
    parse(words);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "accepted";
}
}  // namespace

TEST_CASE("[T04] defaults are those of the issue") {
  const auto config = parse({});
  CHECK(config.batch_size == 64);
  CHECK(config.lr == 0.01);
  CHECK(config.momentum == 0.9);
  CHECK(config.weight_decay == 1e-4);
  CHECK(config.image_size == 32);
  CHECK(config.seed == 42);
}

TEST_CASE(
    "[T04] a flag beats the environment, which beats the file, which beats the default, and each says where it came "
    "from") {
  testing::ScratchDirectory folder;
  const auto file = folder / "train.toml";
  std::ofstream(file) << "[optimizer]\nlr = 0.5\nmomentum = 0.25\n[program]\ndropout = 0.3\n[training]\nepochs = 7\n";
  ::setenv("TROUPE_MOMENTUM", "0.75", 1);
  ::setenv("TROUPE_EPOCHS", "8", 1);
  const auto config = parse({"--config", file, "--epochs", "9", "--batch-size=32", "--optimizer.nesterov", "true"});
  ::unsetenv("TROUPE_MOMENTUM");
  ::unsetenv("TROUPE_EPOCHS");
  CHECK(config.lr == 0.5);
  CHECK(config.momentum == 0.75);
  CHECK(config.epochs == 9);
  CHECK(config.batch_size == 32);
  CHECK(config.nesterov);
  CHECK(config.get<double>("dropout") == 0.3);
  CHECK(config.sources.at("lr") == file + ":2");
  CHECK(config.sources.at("momentum") == "TROUPE_MOMENTUM");
  CHECK(config.sources.at("epochs") == "--epochs");
  CHECK_THAT(config_to_toml(config), Catch::Contains("epochs = 9  # from --epochs"));
}

TEST_CASE("[T04] what --print-config writes reads back equal") {
  testing::ScratchDirectory folder;
  const auto config = parse({"--lr", "0.1", "--resume", "a \"quoted\" path\n\x7f\x7f", "--seed", "18", "--use_amp"});
  std::ofstream(folder / "x.toml") << config_to_toml(config);
  const auto back = parse({"--config", folder / "x.toml"});
  CHECK(config_hash(back) == config_hash(config));
  CHECK(config_to_json(back) == config_to_json(config));
}

TEST_CASE("[T04] every field can be set, appears in the help and refuses nonsense") {
  const Config defaults;
  const auto help = config_help(defaults, "program");
  for (const auto& field : config_fields()) {
    INFO(field.name);
    CHECK_THAT(help, Catch::Contains(std::string("--") + field.name));
    if (std::holds_alternative<std::string Config::*>(field.member)) {
      if (!choices_of(field).empty())
        CHECK_THAT(refused({std::string("--") + field.name, "nonsense"}), Catch::Contains("one of"));
    } else {
      CHECK_THAT(refused({std::string("--") + field.name, "ten"}),
                 Catch::Contains(field.name) && Catch::Contains("'ten'"));
    }
    if (std::holds_alternative<std::int64_t Config::*>(field.member)) {
      CHECK_THAT(refused({std::string("--") + field.name, "-7"}), Catch::Contains("at least"));
      CHECK_THAT(refused({std::string("--") + field.name, "9223372036854775808"}), Catch::Contains(field.name));
    }
    if (std::holds_alternative<double Config::*>(field.member)) {
      for (const char* value : {"nan", "inf", "1e400", "-1"})
        CHECK_THAT(refused({std::string("--") + field.name, value}), Catch::Contains(field.name));
    }
  }
}

TEST_CASE("[U05] validate_only is refused where no setting names a model") {
  CHECK_THAT(refused({"--validate-only"}),
             Catch::Contains("validate_only: there is no model to evaluate; name one: --resume latest"));
  CHECK(parse({"--validate-only", "--resume", "latest"}).validate_only);
  CHECK(parse({"--init_from", "m.safetensors", "--validate-only"}).validate_only);
}

TEST_CASE("[T04] an unknown name is refused with the nearest known one, wherever it stands") {
  CHECK_THAT(refused({"--bach_size", "3"}), Catch::Contains("did you mean batch_size?"));
  CHECK_THAT(refused({"--strategi", "ddp"}), Catch::Contains("did you mean strategy?"));
  CHECK_THAT(refused({"--backend", "glo"}), Catch::Contains("did you mean gloo?"));
  CHECK_THAT(refused({"--droput", "1"}), Catch::Contains("did you mean dropout?"));
  ::setenv("TROUPE_BATHC_SIZE", "3", 1);
  CHECK_THAT(refused({}),
             Catch::Contains("TROUPE_BATHC_SIZE: there is no such setting; did you mean TROUPE_BATCH_SIZE?"));
  ::unsetenv("TROUPE_BATHC_SIZE");
  CHECK_THAT(refused({"train"}), Catch::Contains("'train' is no flag"));
  CHECK_THAT(refused({"--lr"}), Catch::Contains("no value"));
  CHECK_THAT(refused({"--batch_size", "64", "--grad_accum_steps", "3"}),
             Catch::Contains("batch_size") && Catch::Contains("3 equal micro-batches"));
}

TEST_CASE("[T04] a refusal shows what it refuses in one line of printable characters") {
  CHECK_THAT(refused({"--batch_s\nize=3"}), Catch::Contains("'batch_s\\x0aize'"));
  CHECK_THAT(refused({"--batch_size", "3\n4"}), Catch::Contains("'3\\x0a4'"));
  CHECK_THAT(refused({"--dropout", "1\n2"}), Catch::Contains("'1\\x0a2'"));
  CHECK_THAT(refused({"\033[2J"}), Catch::Contains("'\\x1b[2J' is no flag"));
  CHECK(refused({"--" + std::string(100000, 'x') + "=3"}).size() < 300);
  testing::ScratchDirectory folder;
  for (const std::string text : {"[\"a\\nb\"]\nlr = 1\n", "\"a\\nb\" = 1\n", "[optimizer]\n\"a\\nb\" = [1]\n"}) {
    std::ofstream(folder / "bad.toml", std::ios::binary) << text;
    CHECK_THAT(refused({"--config", folder / "bad.toml"}), Catch::Contains("a\\x0ab"));
  }
}

TEST_CASE("[T04] a text that is not UTF-8 is refused, since settings travel as JSON") {
  CHECK_THAT(refused({"--checkpoint_dir", "caf\xe9"}),
             Catch::Contains("checkpoint_dir: 'caf\\xe9' is not UTF-8; give the file or folder a name in UTF-8"));
  Config config;
  config.declare("title", std::string("none"), "a program's own");
  CHECK_THROWS_WITH(set_config_value(config, "title", "caf\xe9", "--title"), Catch::Contains("is not UTF-8"));
  set_config_value(config, "title", "caf\xc3\xa9", "--title");
  CHECK(config.get<std::string>("title") == "caf\xc3\xa9");
}

TEST_CASE("[T04] a bad file is refused with its line") {
  testing::ScratchDirectory folder;
  const auto file = [&](const std::string& text) {
    std::ofstream(folder / "bad.toml", std::ios::binary) << text;
    return refused({"--config", folder / "bad.toml"});
  };
  CHECK_THAT(file("[optimizer]\n\nlrr = 1\n"), Catch::Contains("bad.toml:3") && Catch::Contains("did you mean lr?"));
  CHECK_THAT(file("[optimizr]\nlr = 1\n"), Catch::Contains("bad.toml:1") && Catch::Contains("[optimizer]"));
  CHECK_THAT(file("[optimizer]\nlr = 1\nlr = 2\n"), Catch::Contains("bad.toml:3"));
  CHECK_THAT(file("[optimizer]\nlr = \"ten\"\n"), Catch::Contains("bad.toml:2") && Catch::Contains("'ten'"));
  CHECK_THAT(file("[optimizer]\nlr = [1]\n"), Catch::Contains("bad.toml:2"));
  CHECK_THAT(file("lr ="), Catch::Contains("bad.toml:1"));
  CHECK_THAT(file(std::string("lr\0 = 1", 7)), Catch::Contains("bad.toml:1"));
  CHECK_THAT(file(std::string(2 << 20, 'x')), Catch::Contains("larger than 1 MiB"));
  CHECK_THAT(file("[data]\nepochs = 3\n"), Catch::Contains("no setting 'data.epochs'"));
  CHECK_THAT(refused({"--config", folder / "none.toml"}), Catch::Contains("no such config file"));
  CHECK_THAT(refused({"--config", folder.path()}), Catch::Contains("no regular file"));
  CHECK(file("") == "accepted");
}

TEST_CASE("[T04] the hash covers what ranks must share and nothing else") {
  CHECK(config_hash(parse({})) == config_hash(parse({"--run_dir", "elsewhere", "--num_workers", "5"})));
  CHECK(config_hash(parse({})) != config_hash(parse({"--lr", "0.02"})));
  CHECK(config_hash(parse({})) != config_hash(parse({"--dropout", "0.2"})));
}

TEST_CASE("[T04] docs/config.md is what the list of settings says") {
  CHECK(testing::read_text(TROUPE_SOURCE_DIR "/docs/config.md") == config_reference());
}
