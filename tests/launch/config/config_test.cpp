#include "launch/config/config.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "launch/config/config_fields.hpp"
#include "launch/config/config_help.hpp"
#include "launch/config/unread_settings.hpp"
#include "launch/process/wrapped_text.hpp"
#include "tensor_io/base/nearest_name.hpp"
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

TEST_CASE("[T04] a printed config reads back, also with a program's values that the optimizer does not read") {
  testing::ScratchDirectory folder;
  Config program;
  program.momentum = 0.5;
  testing::write_text(folder / "printed.toml", config_to_toml(program));
  testing::write_text(folder / "other.toml", "[optimizer]\nmomentum = 0.75\n");
  const auto read_by_adamw = [&](const std::string& file) {
    auto config = program;
    const char* const words[] = {"train", "--config", file.c_str(), "--optimizer", "adamw"};
    parse_config(config, 5, words);
    config.sources.erase("optimizer");  // which would put the file's momentum out
    refuse_unread_by_optimizer(config);
  };
  CHECK_NOTHROW(read_by_adamw(folder / "printed.toml"));
  CHECK_THROWS_WITH(read_by_adamw(folder / "other.toml"), Catch::Contains("adamw does not read it"));
}

TEST_CASE("[T04] every field can be set, appears in the help and refuses nonsense") {
  const Config defaults;
  const auto help = config_help(defaults, {"program"});
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
      CHECK_THAT(refused({std::string("--") + field.name, "-7"}),
                 Catch::Contains("at least") || Catch::Contains(" from "));
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

// Each with what makes it be read.
TEST_CASE("[T04] a setting that nothing reads beside the others is refused, one that is read is not") {
  struct Case {
    std::vector<std::string> setting, reader;
  };
  const std::vector<std::string> diloco{"--strategy", "diloco"}, fsdp{"--strategy", "fsdp"},
      pipeline{"--strategy", "pipeline"}, tensor{"--strategy", "tensor_parallel"};
  const std::vector<Case> cases{
      {{"--outer_lr", "0.1"}, diloco},
      {{"--outer_lr", "0.1"}, {"--switch_at", "5:diloco"}},
      {{"--diloco_overlap", "1"}, diloco},
      {{"--sync_every", "3"}, {"--strategy", "local_sgd"}},
      {{"--staleness", "2"}, {"--strategy", "parameter_server"}},
      {{"--fsdp_shard_size", "2"}, {"--strategy", "fsdp", "--fsdp_mode", "hybrid_shard"}},
      {{"--fsdp_mode", "no_shard"}, fsdp},
      {{"--fsdp_prefetch", "3"}, {"--strategy", "tensor_parallel", "--mesh", "fsdp=2,tp=2"}},
      {{"--fsdp_cpu_offload"}, {"--strategy", "zero1"}},
      {{"--pipeline_chunks", "3"}, pipeline},
      {{"--pipeline_schedule", "gpipe"}, {"--strategy", "tensor_parallel", "--mesh", "pp=2,tp=2"}},
      {{"--tensor_plan", "a: column"}, tensor},
      {{"--sequence_parallel"}, {"--strategy", "pipeline", "--mesh", "tp=2,pp=1"}},
      {{"--powersgd_rank", "3"}, {"--comm_hook", "powersgd"}},
      {{"--powersgd_rank", "3"}, {"--switch_at", "5:ddp+powersgd"}},
      {{"--amp_dtype", "fp16"}, {"--use_amp"}},
      {{"--loss_scale_init", "8"}, {"--loss_scaler", "on"}},
      {{"--loss_scale_init", "8"}, {"--use_amp", "--amp_dtype", "fp16"}},
      {{"--init_rename", "a=b"}, {"--init_from", "m.safetensors"}},
      {{"--mlflow_experiment", "mine"}, {"--mlflow_uri", "http://127.0.0.1:5000"}},
      {{"--after_save_timeout", "5"}, {"--after_save", "true"}},
      {{"--lr_min", "0.001"}, {"--schedule", "cosine"}},
      {{"--lr_step_epochs", "5"}, {"--schedule", "step"}},
      {{"--lr_step_factor", "0.5"}, {"--schedule", "step"}},
  };
  for (const auto& [setting, reader] : cases) {
    INFO(setting[0]);
    CHECK_THAT(refused(setting), Catch::StartsWith(setting[0] + ": " + setting[0].substr(2) + " has no effect here: "));
    auto both = setting;
    both.insert(both.end(), reader.begin(), reader.end());
    CHECK_NOTHROW(parse(both));
  }
  CHECK_THAT(refused({"--strategy", "fsdp", "--fsdp_shard_size", "2"}), Catch::Contains("fsdp_mode to hybrid_shard"));
  CHECK_THAT(refused({"--strategy", "zero1", "--verify_every", "5"}), Catch::Contains("compare replicas"));
  CHECK_NOTHROW(parse({"--strategy", "zero1", "--verify_every", "0"}));
  CHECK_THAT(refused({"--verify_every", "0", "--on_divergence", "stop"}), Catch::Contains("no replicas are compared"));
  CHECK_THAT(refused({"--strategy", "local_sgd", "--static_graph"}), Catch::Contains("order of gradients"));
  CHECK_THAT(refused({"--mesh", "fsdp=1,pp=2", "--strategy", "pipeline", "--fsdp_mode", "shard_grad_op"}),
             Catch::Contains("gathers parameters"));
  CHECK_NOTHROW(parse({"--outer_lr", "0.7"}));  // the default, as a printed config has it
  for (const auto& name : unread_settings(Config())) {
    INFO(name);
    CHECK_NOTHROW(config_texts(Config()).at(name));
  }
  testing::ScratchDirectory folder;
  testing::write_text(folder / "diloco.toml", "[strategy]\nstrategy = \"diloco\"\nouter_lr = 0.1\n");
  testing::write_text(folder / "idle.toml", "[strategy]\nouter_lr = 0.1\n");
  CHECK_NOTHROW(parse({"--config", folder / "diloco.toml", "--strategy", "ddp"}));  // the flag is stronger
  CHECK_THAT(refused({"--config", folder / "idle.toml"}), Catch::Contains("idle.toml:2: outer_lr has no effect"));
  ::setenv("TROUPE_OUTER_LR", "0.1", 1);
  CHECK_NOTHROW(parse({}));
  ::unsetenv("TROUPE_OUTER_LR");
  Config programs;
  programs.tensor_plan = "a: column";
  const char* const words[] = {"train", "--tensor_plan", "a: column"};
  CHECK_NOTHROW(parse_config(programs, 3, words));
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
  CHECK_THAT(refused({"train"}), Catch::Contains("'train' is not a flag"));
  CHECK_THAT(refused({"--lr"}), Catch::Contains("no value"));
  CHECK_THAT(refused({"--after_save", "true", "--save_every", "-1"}), Catch::Contains("after_save: nothing is saved"));
  CHECK_THAT(refused({"--batch_size", "64", "--grad_accum_steps", "3"}),
             Catch::Contains("batch_size") && Catch::Contains("3 equal micro-batches"));
}

TEST_CASE("[T04] a refusal shows what it refuses in one line of printable characters") {
  CHECK_THAT(refused({"--batch_s\nize=3"}), Catch::Contains("'batch_s\\x0aize'"));
  CHECK_THAT(refused({"--batch_size", "3\n4"}), Catch::Contains("'3\\x0a4'"));
  CHECK_THAT(refused({"--dropout", "1\n2"}), Catch::Contains("'1\\x0a2'"));
  CHECK_THAT(refused({"\033[2J"}), Catch::Contains("'\\x1b[2J' is not a flag"));
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
  CHECK_THAT(refused({"--config", folder.path()}), Catch::Contains("not a regular file"));
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

namespace {

std::size_t longest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

HelpOptions help_of_width(std::size_t columns) {
  return {"program", columns, {{"strategy", {{"ddp", "all hold all"}, {"fsdp", "each holds a part"}}}}};
}

}  // namespace

TEST_CASE("[U06] no line of the help is wider than it may be, and every word of it is there") {
  Config config;
  config.declare("a_setting_with_a_long_name_of_the_program", std::string("and with a default that is longer still"),
                 "its text");
  const auto columns = GENERATE(as<std::size_t>(), 24, 40, 80, 100);
  const auto options = help_of_width(columns);
  const auto help = config_help(config, options);
  CHECK(longest_line(help) <= columns);
  if (columns >= 80)
    CHECK_THAT(help, Catch::Contains("\n[observe]\n") && Catch::Contains("--tensorboard, --no-tensorboard"));
  for (const auto& name : setting_names(config)) CHECK(longest_line(config_help_on(config, name, options)) <= columns);
}

TEST_CASE("[U06] the help has the values of every choice, those of registries in higher folders too") {
  const auto help = config_help(Config{}, help_of_width(100));
  for (const auto& field : config_fields()) {
    for (const auto& choice : choices_of(field)) CHECK_THAT(help, Catch::Contains(choice));
  }
  CHECK_THAT(help, Catch::Contains("how parameters are laid out over ranks; ddp or fsdp"));
  CHECK_THAT(help, Catch::Contains("where ranks train; auto, cpu, cuda"));
}

TEST_CASE("[U06] a default in the help is what the program chooses, whatever a flag says now") {
  auto config = parse({"--epochs", "7"});
  config.lr = 0.003;
  const auto help = config_help(config, help_of_width(80));
  CHECK_THAT(help, Catch::Contains("--lr 0.003 ") && Catch::Contains("--epochs 10 "));
}

TEST_CASE("[U06] the help on one setting has its values, its variable, its place in a file and its page") {
  const auto options = help_of_width(80);
  const auto config = parse({"--strategy", "fsdp"});
  for (const std::string topic : {"strategy", "--strategy"}) {
    CHECK_THAT(config_help_on(config, topic, options),
               Catch::Contains("fsdp               each holds a part") && Catch::Contains("TROUPE_STRATEGY") &&
                   Catch::Contains("strategy = \"ddp\", under [strategy]") && Catch::Contains("docs/strategies.md") &&
                   Catch::Contains("now          fsdp, from --strategy"));
  }
  CHECK_THAT(config_help_on(config, "dropout", options), Catch::Contains("of the probe") && Catch::Contains("0.1"));
  CHECK_THAT(config_help_on(config, "[optimizer]", options),
             Catch::Contains("--weight_decay") && !Catch::Contains("--batch_size"));
  CHECK_THAT(config_help_on(config, "observe", options), Catch::Contains("--metrics_port"));
  CHECK_THROWS_WITH(config_help_on(config, "stratgy", options), Catch::Contains("did you mean strategy?"));
  for (const auto& field : config_fields()) {
    const auto page = help_page(field.section, field.name);
    if (!page.empty()) CHECK(std::filesystem::exists(std::string(TROUPE_SOURCE_DIR "/") + page));
  }
}

TEST_CASE("[U06] --help NAME is a question, and only a program that can answer it takes it") {
  Config config;
  std::string topic;
  const char* words[] = {"program", "--help", "lr", "--epochs", "3"};
  CHECK(parse_config(config, 5, words, &topic) == ConfigAction::help);
  CHECK(topic == "lr");
  CHECK(config.epochs == 3);
  CHECK_THAT(refused({"--help", "lr"}), Catch::Contains("'lr' is not a flag"));
}

TEST_CASE("[U06] --no-NAME turns a switch off, the last of several flags holds, and only switches have it") {
  CHECK_FALSE(parse({"--no-tensorboard"}).tensorboard);
  CHECK_FALSE(parse({"--no_progress_bar"}).progress_bar);
  CHECK(parse({"--no-tensorboard", "--tensorboard"}).tensorboard);
  CHECK_FALSE(parse({"--tensorboard", "true", "--no-tensorboard"}).tensorboard);
  CHECK(parse({"--no-tensorboard"}).sources.at("tensorboard") == "--no-tensorboard");
  CHECK(parse({"--no-profile"}).profile == "false");
  CHECK_THAT(refused({"--no-lr"}), Catch::StartsWith("--no-lr: lr is not a switch") && Catch::Contains("--lr ..."));
  CHECK_THAT(refused({"--no-tensorboard=true"}), Catch::Contains("takes no value"));
  CHECK_THAT(refused({"--no-tensorbord"}), Catch::Contains("did you mean --no-tensorboard?"));
  Config config;
  config.declare("tied", true, "of the probe");
  config.declare("no_cache", false, "of the probe");
  const char* words[] = {"program", "--no-tied", "--no-cache"};
  parse_config(config, 3, words);
  CHECK_FALSE(config.get<bool>("tied"));
  CHECK(config.get<bool>("no_cache"));
}

TEST_CASE("[U06] a flag's refusal names it once, and says between which numbers it lies") {
  CHECK_THAT(refused({"--lr", "fast"}), Catch::Equals("--lr: 'fast' is not a number from 0 to 1e+06"));
  CHECK_THAT(refused({"--batch_size", "0"}), Catch::Equals("--batch_size: '0' is not a whole number of at least 1"));
  ::setenv("TROUPE_LR", "slow", 1);
  CHECK_THAT(refused({}), Catch::StartsWith("TROUPE_LR: 'slow'"));
  ::unsetenv("TROUPE_LR");
}

TEST_CASE("[U06] a value that no registry has is refused with the nearest one that it has") {
  const auto refusal = [](const std::vector<std::string>& words) -> std::string {
    try {
      check_registered_names(parse(words), help_of_width(80));
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal({"--strategy", "fsdp"}) == "accepted");
  CHECK_THAT(refusal({"--strategy", "fdsp"}),
             Catch::StartsWith("--strategy: 'fdsp'") && Catch::Contains("did you mean fsdp? known: ddp, fsdp"));
}

TEST_CASE("[U06] a variable with a short name is refused if one letter is wrong, and the launcher's own are not") {
  ::setenv("TROUPE_LRR", "3", 1);
  CHECK_THAT(refused({}), Catch::Contains("did you mean TROUPE_LR?"));
  ::unsetenv("TROUPE_LRR");
  for (const std::string name :
       {"ADDRESS",          "CHECKPOINT", "COORDINATOR", "FAULT",   "INCARNATION", "INSECURE_MLFLOW",
        "INSECURE_NETWORK", "INSPECT",    "JOB_ID",      "KERNELS", "KEYS",        "NODE",
        "PROGRESS",         "RECOVERY",   "RESTARTS",    "RUN",     "SLOT",        "SPARE",
        "START_OVER",       "STEP"}) {
    ::setenv(("TROUPE_" + name).c_str(), "1", 1);
    CHECK(refused({}) == "accepted");
    ::unsetenv(("TROUPE_" + name).c_str());
  }
}

TEST_CASE("[U06] no variable of the launcher's is taken for a setting of the program, or for one that is misspelt") {
  Config config;
  config.declare("slow", std::int64_t{1}, "a name next to slot");
  for (const auto& name : {"TROUPE_SLOT", "TROUPE_RESTARTS", "TROUPE_CHECKPOINT"}) ::setenv(name, "7", 1);
  const char* const words[] = {"train"};
  CHECK_NOTHROW(parse_config(config, 1, words));
  CHECK(config.get<std::int64_t>("slow") == 1);
  for (const auto& name : {"TROUPE_SLOT", "TROUPE_RESTARTS", "TROUPE_CHECKPOINT"}) ::unsetenv(name);
  for (const auto* taken : {"slot", "restarts", "checkpoint", "node", "step"}) {
    CHECK_THROWS_WITH(config.declare(taken, std::int64_t{1}, ""),
                      Catch::Contains("the launcher already uses TROUPE_") &&
                          Catch::Contains("choose another name than '" + std::string(taken) + "'"));
  }
}

TEST_CASE("[U06] a page of help is wrapped in the column of its texts") {
  CHECK(wrapped_page("  --a N   one two three four five six\n", 30) ==
        "  --a N   one two three four\n          five six\n");
  CHECK(wrapped_page("  short   text\n\nnext\n", 20) == "  short   text\n\nnext\n");
  CHECK(wrapped_page("a paragraph that is longer\n", 22) == "a paragraph that is\nlonger\n");
  CHECK(wrapped("--flag", 4, "text", 40) == "--flag\n    text\n");
  CHECK(wrapped("", 0, std::string(50, 'x'), 30) == std::string(30, 'x') + "\n" + std::string(20, 'x') + "\n");
}

TEST_CASE("[T04] two letters that changed places are one mistake") {
  CHECK(nearest_name("fdsp", {"ddp", "fsdp"}) == "fsdp");
  CHECK(nearest_name("lr", {"rl"}, 1) == "rl");
  CHECK(nearest_name("abcd", {"badc"}, 2) == "badc");
  CHECK(nearest_name("sgd", {"adamw", "digits"}).empty());
  CHECK(remedy_for_name("gloo", {{"shm", ""}, {"gloo_", ""}}) == "did you mean gloo_? known: shm, gloo_");
}
