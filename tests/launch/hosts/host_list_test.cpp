#include "launch/hosts/host_list.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <random>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using namespace std::string_literals;
using Catch::Contains;

namespace {

std::vector<Host> parse(const std::string& text) { return parse_host_list(text, "hosts.txt"); }

// What the refusal says; fails if there is none.
std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    CHECK_FALSE(error.report().cause.empty());
    std::string line = error.what();
    CHECK(line.find('\n') == std::string::npos);
    CHECK(line.size() < 700);
    return line;
  }
  FAIL("nothing was refused");
  return {};
}
std::string refusal_of(const std::string& text) {
  return refusal([&] { parse(text); });
}

}  // namespace

TEST_CASE("[L02] a host file names hosts, slots, ports, users and addresses") {
  const auto hosts = parse(
      "# our cluster\n"
      "\n"
      "worker-1 slots=4\n"
      "  worker-2\tslots=2 port=2222 user=ann address=10.0.0.2   # in the other rack\r\n"
      "worker-3:3\n"
      "bob@worker-4:2 max_slots=8\n"
      "worker-5");
  REQUIRE(hosts.size() == 5);
  CHECK(hosts[0] == Host{"worker-1", "worker-1", 4, 0, "", 3});
  CHECK(hosts[1] == Host{"worker-2", "10.0.0.2", 2, 2222, "ann", 4});
  CHECK(hosts[2] == Host{"worker-3", "worker-3", 3, 0, "", 5});
  CHECK(hosts[3] == Host{"worker-4", "worker-4", 2, 0, "bob", 6});
  CHECK(hosts[4] == Host{"worker-5", "worker-5", 1, 0, "", 7});
}

TEST_CASE("[L02] what other launchers read is taken") {
  CHECK(parse("worker-1 slots=4\nworker-2 slots=4\n").size() == 2);                              // DeepSpeed
  CHECK(parse("aa slots=4 max_slots=8\nbb slots = 2 max-slots = 4\ncc:4\ndd\n")[1].slots == 2);  // Open MPI
  CHECK(parse("\xef\xbb\xbfone slots=2\r\n\ttwo slots=2\r\n").front().name == "one");            // saved on Windows
}

TEST_CASE("[L12] a host on several lines has the sum of their slots, as Open MPI and PBS write it") {
  const auto mpi = parse("aa slots=2\nbb slots=4\naa slots=3\n");
  REQUIRE(mpi.size() == 2);
  CHECK(mpi[0] == Host{"aa", "aa", 5, 0, "", 1});
  CHECK(mpi[1] == Host{"bb", "bb", 4, 0, "", 2});
  const auto pbs = parse("n01\nn01\nn02\nn02\nn02\n");  // $PBS_NODEFILE: a line for each slot
  REQUIRE(pbs.size() == 2);
  CHECK(pbs[0].slots == 2);
  CHECK(pbs[1].slots == 3);
  CHECK(parse("n port=2222\nn port=2222")[0].slots == 2);
  CHECK(parse_host_flag("a:8,b:8,a:2")[0].slots == 10);
}

TEST_CASE("[L10] two names of this machine are refused: they would be two hosts to the ranks") {
  for (const std::string list : {"localhost:2,127.0.0.1:2", "127.0.0.1,127.0.0.2", "[::1]:2,a,localhost"}) {
    const auto line = refusal([&] { parse_host_flag(list); });
    CHECK_THAT(line, Contains("is this machine, and so is entry 1") && Contains("localhost:2"));
  }
  CHECK(parse("a address=127.0.0.1\nb address=127.0.0.2").size() == 2);  // on purpose
}

TEST_CASE("[L02] names are brought to one spelling") {
  CHECK(parse("Worker-1.Example.COM.")[0].name == "worker-1.example.com");
  CHECK(parse("192.168.1.7:2")[0] == Host{"192.168.1.7", "192.168.1.7", 2, 0, "", 1});
  CHECK(parse("[FD00:0:0:0::1]:8")[0] == Host{"fd00::1", "fd00::1", 8, 0, "", 1});
  CHECK(parse("fd00::0001")[0].name == "fd00::1");
  CHECK(parse("[fe80::1%eth0]:2")[0].name == "fe80::1%eth0");
  CHECK(parse("a address=[FD00::2]")[0].address == "fd00::2");
  CHECK(parse("a address=FD00::2")[0].address == "fd00::2");
  CHECK(parse("Gpu1 slots=2\ngpu1. slots=2").size() == 1);
  CHECK(parse("[fd00::1]:2\nfd00:0::1").size() == 1);
}

TEST_CASE("[L02] the flag form is the short form of a file") {
  const auto hosts = parse_host_flag("a:8,ann@b:4,[::1]:2, c");
  REQUIRE(hosts.size() == 4);
  CHECK(hosts[0] == Host{"a", "a", 8, 0, "", 1});
  CHECK(hosts[1] == Host{"b", "b", 4, 0, "ann", 2});
  CHECK(hosts[2] == Host{"::1", "::1", 2, 0, "", 3});
  CHECK(hosts[3] == Host{"c", "c", 1, 0, "", 4});
  const auto refused = [](const std::string& text) { return refusal([&] { parse_host_flag(text); }); };
  CHECK_THAT(refused(""), Contains("--hosts") && Contains("no host") && Contains("a:8,b:8"));
  CHECK_THAT(refused("a:8,,b"), Contains("--hosts entry 2") && Contains("empty"));
  CHECK_THAT(refused("a,"), Contains("entry 2"));
  CHECK_THAT(refused("a:8,b:8,ann@a:2"), Contains("entry 3") && Contains("'a'") && Contains("entry 1"));
  CHECK_THAT(refused("a:0"), Contains("entry 1") && Contains("slots '0'"));
  CHECK_THAT(refused("-oProxyCommand=sh:8"), Contains("entry 1") && Contains("begins with '-'"));
  CHECK_THAT(refused("a slots=2"), Contains("' '"));
}

TEST_CASE("[L02] a malformed host list is refused with its line, field, value and a remedy") {
  struct Case {
    std::string text, where, what, remedy;
  };
  const std::string long_name(300, 'a'), long_label = "a." + std::string(64, 'b');
  const std::vector<Case> cases = {
      {"", "hosts.txt", "names no host", "worker-1 slots=8"},
      {"\n # nothing\n\t\n", "hosts.txt", "names no host", "worker-1 slots=8"},
      {"a\nb\na slots=2 port=2222", "line 3", "'a' is in line 1 with a different address, port or user", "add up"},
      {"a slots=1000\na slots=25", "line 2", "'a' has 1025 slots with those of line 1", "1024"},
      {"a address=10.0.0.1\nb address=10.0.0.1", "line 2", "address '10.0.0.1' is already in line 1", "one name"},
      {"a:0", "line 1", "slots '0'", "slots=8"},
      {"a:-1", "line 1", "slots '-1'", "slots=8"},
      {"a:99999", "line 1", "slots '99999'", "slots=8"},
      {"a:", "line 1", "slots ''", "slots=8"},
      {"a slots=", "line 1", "slots ''", "slots=8"},
      {"a slots", "line 1", "'slots' is not a field", "slots=8"},
      {"a slots=two", "line 1", "slots 'two'", "slots=8"},
      {"a slots=1e3", "line 1", "slots '1e3'", "slots=8"},
      {"a slots=99999999999999999999", "line 1", "slots '99999999999999999999'", "slots=8"},
      {"a port=65536", "line 1", "port '65536'", "sshd"},
      {"a port=0", "line 1", "port '0'", "sshd"},
      {"a port=-1", "line 1", "port '-1'", "sshd"},
      {"a slots=2 slots=3", "line 1", "slots is given twice, '2' and '3'", "keep one"},
      {"a:2 slots=3", "line 1", "slots are given twice", "keep one"},
      {"x@a user=y", "line 1", "user is given twice", "keep one"},
      {"a slots=8 max_slots=4", "line 1", "more than max_slots 4", "lower"},
      {"a gpus=8", "line 1", "no field 'gpus'", "slots, port, user and address"},
      {"a =8", "line 1", "'=8' is not a field", "slots=8"},
      {"a\nb c\n", "line 2", "'c' is not a field", "field=value"},
      {"[fd00::1", "line 1", "'[fd00::1'", "[fd00::1]:8"},
      {"[worker]:8", "line 1", "'[worker]:8'", "[fd00::1]:8"},
      {"[fd00::1]8", "line 1", "'8' follows", ":SLOTS"},
      {"fd00::1::2", "line 1", "'fd00::1::2'", "[fd00::1]:8"},
      {"a:8:9", "line 1", "'a:8:9'", "worker-1:8"},
      {"[fe80::1%$(id)]", "line 1", "'[fe80::1%$(id)]'", "[fd00::1]"},
      {"1.2.3", "line 1", "'1.2.3' is not an IPv4 address", "four numbers"},
      {"10.0.0.256", "line 1", "'10.0.0.256' is not an IPv4 address", "four numbers"},
      {"127.1", "line 1", "'127.1' is not an IPv4 address", "four numbers"},
      {"4", "line 1", "'4' is not an IPv4 address", "four numbers"},
      {"a..b", "line 1", "'a..b'", "letters"},
      {".", "line 1", "'.'", "letters"},
      {"a-.b", "line 1", "'a-.b'", "no host"},
      {long_name, "line 1", "300 characters", "253"},
      {long_label, "line 1", "64 characters", "63"},
      {"-oProxyCommand=reboot slots=4", "line 1", "begins with '-'", "host's name"},
      {"ann@-oProxyCommand=reboot", "line 1", "begins with '-'", "host's name"},
      {"a address=-oProxyCommand=reboot", "line 1", "address '-oProxyCommand=reboot' begins with '-'", "host's name"},
      {"a address=", "line 1", "address '' is empty", "host's name"},
      {"a address=b:22", "line 1", "address 'b:22'", "port=P"},
      {"a;reboot", "line 1", "';'", "letters"},
      {"$(reboot)", "line 1", "'$'", "letters"},
      {"a`id`", "line 1", "'`'", "letters"},
      {"a|b", "line 1", "'|'", "letters"},
      {"a/b", "line 1", "'/'", "letters"},
      {"a%h", "line 1", "'%'", "letters"},
      {"w\xc3\xb6rker", "line 1", "w\\xc3\\xb6rker", "letters"},
      {"a\x1b[31m", "line 1", "a\\x1b[31m", "letters"},
      {"@a", "line 1", "user ''", "letters"},
      {"a user=-l", "line 1", "user '-l' begins with '-'", "letters"},
      {"a user=x;y", "line 1", "';'", "letters"},
      {"a user=x y", "line 1", "'y' is not a field", "field=value"},
      {"a user=x'y", "line 1", "user 'x'y'", "letters"},
      {"a@b@c", "line 1", "'@'", "letters"},
      {std::string("a\0b", 3), "line 1", "NUL", "plain text"},
      {std::string("\xff\xfe"
                   "a\0\n\0",
                   6),
       "line 1", "NUL", "plain text"},
      {"a,b", "line 1", "','", "letters"},
  };
  for (const auto& [text, where, what, remedy] : cases) {
    INFO(text);
    CHECK_THAT(refusal_of(text), Contains("hosts.txt") && Contains(where) && Contains(what) && Contains(remedy));
  }
}

TEST_CASE("[L02] a host list has bounds") {
  std::string text;
  for (int i = 0; i < kMaxHosts; ++i) text += "host" + std::to_string(i) + " slots=2\n";
  CHECK(parse(text).size() == kMaxHosts);
  CHECK_THAT(refusal_of(text + "one-more"), Contains("line 10001") && Contains("at most 10000 hosts"));
  std::string hundred_thousand;
  for (int i = 0; i < 100'000; ++i) hundred_thousand += "h" + std::to_string(i) + "\n";
  CHECK_THAT(refusal_of(hundred_thousand), Contains("line 10001"));
  std::string slots;
  for (int i = 0; i < 1000; ++i) slots += "host" + std::to_string(i) + " slots=1024\n";
  CHECK_THAT(refusal_of(slots), Contains("line 977") && Contains("at most 1000000 ranks"));
  CHECK_THAT(refusal_of(std::string(kMaxHostFileBytes + 1, '\n')), Contains("bytes"));
  CHECK_THAT(refusal_of(std::string(1 << 20, 'x')), Contains("line 1") && Contains("1048576 characters"));
}

TEST_CASE("[L02] a host file that is none is refused without waiting for it") {
  const testing::ScratchDirectory scratch;
  const auto refused = [](const std::string& path) { return refusal([&] { read_host_file(path); }); };
  const auto pipe = scratch / "pipe", huge = scratch / "huge", good = scratch / "good";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  testing::write_text(huge, "a\n");
  std::filesystem::resize_file(huge, 1ull << 40);  // sparse
  testing::write_text(good, "a slots=2\nb slots=2\n");
  CHECK(read_host_file(good).size() == 2);
  CHECK_THAT(refused(pipe), Contains(pipe) && Contains("pipe"));
  CHECK_THAT(refused("/dev/zero"), Contains("/dev/zero") && Contains("device"));
  CHECK_THAT(refused(scratch.path()), Contains("folder"));
  CHECK_THAT(refused(huge), Contains(huge) && Contains("bytes"));
  CHECK_THAT(refused(scratch / "absent"), Contains("absent") && Contains("No such file"));
  CHECK_THAT(refused(""), Contains("empty"));
  CHECK_THAT(refused(std::string("a\0b", 3)), Contains("NUL"));
  CHECK_THAT(refused("/dev/null/x"), Contains("/dev/null/x"));
  std::filesystem::permissions(good, std::filesystem::perms::none);
  const bool root = ::geteuid() == 0;  // who reads everything
  if (root) REQUIRE(::seteuid(65534) == 0);
  const auto unreadable = refused(good);
  if (root) REQUIRE(::seteuid(0) == 0);
  CHECK_THAT(unreadable, Contains(good) && Contains("Permission denied"));
}

TEST_CASE("[L02] ranks fill one host after the other") {
  CHECK(assign_ranks({}).empty());
  const auto places = assign_ranks(parse("a slots=2\nb\nc slots=3"));
  CHECK(places == std::vector<RankPlace>{{0, 0}, {0, 1}, {1, 0}, {2, 0}, {2, 1}, {2, 2}});
}

TEST_CASE("[L02] any bytes are either a valid host list or refused") {
  std::mt19937 random(20240607);
  const auto alphabet = "abcAB019.-_:@[]%=#,; \t\r\n\0\xc3\xff$'\"\\/"s;
  const std::vector<std::string> pieces = {
      "slots=", "port=", "user=", "address=", "max_slots=", "[fd00::1]", "worker", "\n", ":8", "4"};
  const auto check = [](const std::vector<Host>& hosts) {
    REQUIRE_FALSE(hosts.empty());
    for (const auto& host : hosts) {
      for (const auto& text : {host.name, host.address}) {
        REQUIRE_FALSE(text.empty());
        REQUIRE(text.front() != '-');
        REQUIRE(text.find_first_of(" ;$`'\"\\/@[]\n") == std::string::npos);
      }
      REQUIRE((host.slots >= 1 && host.slots <= kMaxSlots));
    }
  };
  int taken = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    const auto parts = random() % 24;
    for (unsigned k = 0; k < parts; ++k) {
      switch (random() % 4) {
        case 0: text += pieces[random() % pieces.size()]; break;
        case 1: text += static_cast<char>(random() % 256); break;
        default: text += alphabet[random() % alphabet.size()];
      }
    }
    for (const bool flag : {false, true}) {
      try {
        check(flag ? parse_host_flag(text) : parse(text));
        ++taken;
      } catch (const Error& error) {
        REQUIRE(error.code() == ErrorCode::usage);
        ++refused;
      }
    }
  }
  CHECK(taken > 100);
  CHECK(refused > 1000);
}
