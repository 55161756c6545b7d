#include "launch/hosts/ssh_command.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using Catch::Contains;

namespace {

using Words = std::vector<std::string>;

struct Run {
  int status = -1;
  std::string output;
};

// Runs argv itself, as ssh's server runs `shell -c text`.
Run run(const Words& words) {
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(pipe[1], 1);
    ::close(pipe[0]);
    std::vector<char*> argv;
    for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(pipe[1]);
  Run result;
  char block[4096];
  for (ssize_t n = 0; (n = ::read(pipe[0], block, sizeof block)) > 0;)
    result.output.append(block, static_cast<std::size_t>(n));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return result;
}

// The login shells that this machine has.
Words shells() {
  Words found;
  for (const char* shell : {"sh", "dash", "bash", "zsh", "ksh", "fish"}) {
    if (run({"sh", "-c", std::string("command -v ") + shell + " >/dev/null"}).status == 0) found.emplace_back(shell);
  }
  return found;
}

// printf '%s\0' gives the words back with a NUL after each.
Words split(const std::string& output) {
  Words words;
  for (std::size_t begin = 0; begin < output.size();) {
    const auto end = output.find('\0', begin);
    words.push_back(output.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

const Words kOdd = {"",          "plain",
                    "two words", "it's",
                    "'",         "''",
                    "\\",        "\\'",
                    "a\\\\b",    "!",
                    "!!",        "$HOME",
                    "${IFS}",    "$(touch /nowhere)",
                    "`id`",      "\"",
                    "a;b",       "a&b",
                    "a|b",       "a>b",
                    "*",         "~",
                    "#",         "-n",
                    "--",        "=",
                    "%s",        "line one\nline two",
                    "tab\there", "w\xc3\xb6rter",
                    "\xff\xfe",  "\x1b[31m",
                    "{a,b}",     "a=b",
                    "^x^y"};

Host ssh_host_of(const std::string& line) { return parse_host_list(line, "hosts").front(); }
bool has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

TEST_CASE("[L02] a quoted word comes back from every shell as it was") {
  for (const auto& shell : shells()) {
    INFO(shell);
    std::string text = "printf '%s\\0'";
    for (const auto& word : kOdd) text += " " + quote_for_shell(word);
    CHECK(split(run({shell, "-c", text}).output) == kOdd);
  }
  std::mt19937 random(11);
  Words words;
  std::string text = "printf '%s\\0'";
  for (int i = 0; i < 500; ++i) {
    std::string word;
    for (auto n = random() % 12; n > 0; --n) word += static_cast<char>(1 + random() % 255);
    text += " " + quote_for_shell(word);
    words.push_back(word);
  }
  CHECK(split(run({"sh", "-c", text}).output) == words);
  CHECK_THROWS_WITH(quote_for_shell(std::string_view("a\0b", 3)), Contains("NUL"));
}

TEST_CASE("[L02] the remote command runs in its folder with its environment") {
  const testing::ScratchDirectory scratch;
  const std::string folder = scratch / "it's a \"folder\" $(here)";
  std::filesystem::create_directory(folder);
  SshOptions options;
  options.working_directory = folder;
  options.environment = {{"TROUPE_TEXT", "a b'c\\d!e$HOME\nf"}, {"EMPTY", ""}};
  Words command{"sh", "-c", R"(printf '%s\0' "$PWD" "$TROUPE_TEXT" "[$EMPTY]" "$@")", "name"};
  command.insert(command.end(), kOdd.begin(), kOdd.end());
  const auto arguments = ssh_command(ssh_host_of("worker-1"), command, options);
  Words expected{folder, options.environment["TROUPE_TEXT"], "[]"};
  expected.insert(expected.end(), kOdd.begin(), kOdd.end());
  for (const auto& shell : shells()) {
    INFO(shell);
    const auto result = run({shell, "-c", arguments.back()});
    CHECK(result.status == 0);
    CHECK(split(result.output) == expected);
  }
  SECTION("its exit code comes through, and a folder that is not there is an error") {
    CHECK(run({"sh", "-c", ssh_command(ssh_host_of("a"), {"sh", "-c", "exit 65"}).back()}).status == 65);
    options.working_directory = scratch / "absent";
    CHECK(run({"sh", "-c", ssh_command(ssh_host_of("a"), {"true"}, options).back() + " 2>/dev/null"}).status != 0);
  }
}

TEST_CASE("[L02] ssh is asked for nothing but the command") {
  SshOptions options;
  options.extra_arguments = {"-F", "/tmp/some config"};
  const auto words =
      ssh_command(ssh_host_of("worker-1 port=2222 user=ann address=10.0.0.2"), {"troupe", "node"}, options);
  CHECK(words.front() == "ssh");
  for (const char* word : {"BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3",
                           "HostName=10.0.0.2", "2222", "ann"})
    CHECK(has(words, word));
  CHECK(Words(words.end() - 3, words.end()) == Words{"--", "worker-1", "exec env 'troupe' 'node'"});
  const auto given = std::find(words.begin(), words.end(), "-F");
  CHECK(*(given + 1) == "/tmp/some config");
  CHECK(given < std::find(words.begin(), words.end(), "ConnectTimeout=10"));
  const auto plain = ssh_command(ssh_host_of("worker-1"), {"true"});
  CHECK_FALSE(has(plain, "-p"));
  CHECK_FALSE(has(plain, "-l"));
  CHECK(
      std::none_of(plain.begin(), plain.end(), [](const std::string& word) { return word.starts_with("HostName="); }));
  CHECK(has(ssh_command(ssh_host_of("a address=fe80::1%eth0"), {"true"}), "HostName=fe80::1%%eth0"));
}

TEST_CASE("[L02] ssh itself understands what we ask") {
  if (run({"sh", "-c", "command -v ssh >/dev/null"}).status != 0) {
    WARN("NOT TESTED: there is no ssh here");
    return;
  }
  SshOptions options;
  options.extra_arguments = {"-F", "/dev/null", "-G"};  // prints its settings instead of connecting
  const auto said =
      run(ssh_command(ssh_host_of("worker-1 port=2222 user=ann address=fe80::1%eth0"), {"troupe", "node"}, options));
  CHECK(said.status == 0);
  for (const char* line :
       {"\nhostname fe80::1%eth0\n", "\nport 2222\n", "user ann\n", "\nbatchmode yes\n", "\nconnecttimeout 10\n",
        "\nserveraliveinterval 5\n", "\nforwardagent no\n", "\nforwardx11 no\n"})
    CHECK_THAT("\n" + said.output, Contains(line));
}

TEST_CASE("[L02] secrets never stand on a command line") {
  for (const char* name : {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "api_key", "OPENAI_API_KEY",
                           "GOOGLE_APPLICATION_CREDENTIALS", "PGPASS_PASS"})
    CHECK(looks_secret(name));
  for (const char* name : {"PATH", "OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "TROUPE_RUN_DIR", "KEYBOARD", "MONKEY"})
    CHECK_FALSE(looks_secret(name));
  SshOptions options;
  options.environment = {{"WANDB_API_KEY", "abc"}};
  CHECK_THROWS_WITH(ssh_command(ssh_host_of("a"), {"true"}, options),
                    Contains("WANDB_API_KEY") && Contains("secret") && !Contains("abc"));

  const std::map<std::string, std::string> all = {
      {"NCCL_DEBUG", "INFO"}, {"NCCL_TOKEN", "x"}, {"NCC", "y"}, {"PATH", "/bin"}, {"LD_LIBRARY_PATH", "/lib"}};
  const std::map<std::string, std::string> chosen = {{"NCCL_DEBUG", "INFO"}, {"LD_LIBRARY_PATH", "/lib"}};
  CHECK(environment_of_host(all) == chosen);
}

TEST_CASE("[L02] what ssh or a shell could misread is refused") {
  Host host = ssh_host_of("a");
  host.name = "-oProxyCommand=reboot";
  CHECK_THROWS_AS(ssh_command(host, {"true"}), Error);
  host = ssh_host_of("a");
  host.user = "-l";
  CHECK_THROWS_AS(ssh_command(host, {"true"}), Error);
  host = ssh_host_of("a");
  CHECK_THROWS_AS(ssh_command(host, {}), Error);
  CHECK_THROWS_AS(ssh_command(host, {""}), Error);
  CHECK_THROWS_AS(ssh_command(host, {"-i"}), Error);
  CHECK_THROWS_AS(ssh_command(host, {"A=b"}), Error);
  SshOptions options;
  options.working_directory = "relative";
  CHECK_THROWS_WITH(ssh_command(host, {"true"}, options), Contains("relative"));
  options = {};
  options.environment = {{"A;reboot", "1"}};
  CHECK_THROWS_WITH(ssh_command(host, {"true"}, options), Contains("A;reboot"));
}

TEST_CASE("[L04] every setting of the environment reaches a host, and none is left out in silence") {
  const std::map<std::string, std::string> all{
      {"HOME", "/home/ann"},       {"NCCL_DEBUG", "INFO"},      {"OMP_NUM_THREADS", "2"},    {"TROUPE_FAULT", "x"},
      {"TROUPE_KEYS", "/keys"},    {"TROUPE_LR", "0.5"},        {"TROUPE_MY_OWN", "a 'b'"},  {"TROUPER", "no setting"},
      {"WANDB_API_KEY", "secret"}, {"LD_LIBRARY_PATH", "/lib"}, {"CUDA_VISIBLE_DEVICES", ""}};
  CHECK(environment_of_host(all) == std::map<std::string, std::string>{{"NCCL_DEBUG", "INFO"},
                                                                       {"OMP_NUM_THREADS", "2"},
                                                                       {"TROUPE_FAULT", "x"},
                                                                       {"TROUPE_LR", "0.5"},
                                                                       {"TROUPE_MY_OWN", "a 'b'"},
                                                                       {"LD_LIBRARY_PATH", "/lib"},
                                                                       {"CUDA_VISIBLE_DEVICES", ""}});
  CHECK_THROWS_WITH(environment_of_host({{"TROUPE_MAX_TOKENS", "9"}}),
                    Catch::Contains("TROUPE_MAX_TOKENS") && Catch::Contains("--config"));
}
