#include "launch/doctor/doctor.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "launch/doctor/doctor_agent.hpp"
#include "launch/doctor/tcp_probe.hpp"
#include "launch/process/build_id.hpp"
#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

constexpr std::uint64_t kGiB = 1 << 30;

HostFacts healthy() {
  HostFacts facts;
  facts.version = "1.0";
  facts.build_id = "abcdef0123456789";
  facts.hostname = "h1";
  facts.cores = 8;
  facts.memory = 64 * kGiB;
  facts.locked_memory = 8 << 20;
  facts.open_files = 65536;
  facts.shm = facts.shm_free = 8 * kGiB;
  facts.run_dir = "/runs";
  facts.run_dir_free = 100 * kGiB;
  facts.first_port = 32768;
  facts.last_port = 60999;
  facts.addresses = "lo 127.0.0.1,eth0 10.0.0.1";
  return facts;
}

Finding about(const std::vector<Finding>& findings, const std::string& check) {
  const auto found =
      std::find_if(findings.begin(), findings.end(), [&](const Finding& each) { return each.check == check; });
  REQUIRE(found != findings.end());
  return *found;
}

Host host_of(const std::string& line) { return parse_host_list(line, "hosts").front(); }

}  // namespace

TEST_CASE("[L06] doctor finds nothing wrong with a healthy host") {
  for (const auto& finding : judge_host("h1", healthy(), 4, 2)) {
    INFO(to_line(finding));
    CHECK(finding.verdict == Verdict::ok);
    CHECK(finding.host == "h1");
    CHECK(finding.remedy.empty());
    CHECK_FALSE(finding.found.empty());
  }
}

TEST_CASE("[L06] doctor names what is wrong with a host, and what to do") {
  struct Case {
    std::string check;
    Verdict verdict;
    std::function<void(HostFacts&)> harm;
    std::string found, remedy;
  };
  const std::vector<Case> cases = {
      {"cores", Verdict::warn, [](auto& facts) { facts.cores = 2; }, "2 for 4 slots", "slots"},
      {"memory", Verdict::warn, [](auto& facts) { facts.memory_limit = kGiB; }, "1.0 GiB, the control group's limit",
       "memory"},
      {"memlock", Verdict::warn, [](auto& facts) { facts.infiniband = 1; }, "8 MiB", "ulimit -l"},
      {"nofile", Verdict::warn, [](auto& facts) { facts.open_files = 1024; }, "1024", "ulimit -n"},
      {"nofile", Verdict::fail, [](auto& facts) { facts.open_files = 64; }, "64", "ulimit -n"},
      {"shm", Verdict::warn, [](auto& facts) { facts.shm_free = 64 << 20; }, "free 64 MiB", "--shm-size"},
      {"shm", Verdict::fail, [](auto& facts) { facts.shm = 0; }, "missing", "tmpfs"},
      {"disk", Verdict::warn, [](auto& facts) { facts.run_dir_free = kGiB / 2; }, "512 MiB", "room"},
      {"disk", Verdict::fail, [](auto& facts) { facts.run_dir_free = 1 << 20; }, "/runs: 1 MiB", "--run-dir"},
      {"disk", Verdict::fail, [](auto& facts) { facts.run_dir_error = "/: Read-only file system"; }, "Read-only",
       "--run-dir"},
      {"addresses", Verdict::fail, [](auto& facts) { facts.addresses = "eth0 10.0.0.1"; }, "10.0.0.1", "lo up"},
      {"addresses", Verdict::fail, [](auto& facts) { facts.addresses = "lo 127.0.0.1,lo ::1,eth0 fe80::1"; },
       "127.0.0.1", "loopback address only"},
      {"ports", Verdict::warn, [](auto& facts) { facts.last_port = facts.first_port + 9; }, "10 for",
       "ip_local_port_range"},
  };
  for (const auto& [check, verdict, harm, found, remedy] : cases) {
    auto facts = healthy();
    harm(facts);
    const auto finding = about(judge_host("h1", facts, 4, 2), check);
    INFO(to_line(finding));
    CHECK(finding.verdict == verdict);
    CHECK_THAT(finding.found, Contains(found));
    CHECK_THAT(finding.remedy, Contains(remedy));
  }
  auto facts = healthy();
  facts.addresses = "lo 127.0.0.1";
  CHECK(about(judge_host("", facts, 1, 1), "addresses").verdict == Verdict::ok);  // alone it needs no other
}

TEST_CASE("[L06] doctor lists GPUs with their NUMA nodes, and warns of too few and of other ones") {
  const auto node_of = [](const std::string& address) { return address == "0000:0a:00.0" ? "1\n" : "-1\n"; };
  const auto gpus = gpus_in(
      "NVIDIA H200, 143771 MiB, 580.159.04, 00000000:0A:00.0\nNVIDIA H200, 143771 MiB, 580.159.04, 00000000:06:00.0\n"
      "Failed to initialize NVML: Driver/library version mismatch\n",
      node_of);
  CHECK(gpus == "NVIDIA H200, 143771 MiB, driver 580.159.04, NUMA node 1; NVIDIA H200, 143771 MiB, driver 580.159.04");
  CHECK(gpus_in("", node_of).empty());
  auto facts = healthy();
  facts.gpus = gpus;
  CHECK(about(judge_host("h1", facts, 2, 2), "gpus").verdict == Verdict::ok);
  CHECK_THAT(about(judge_host("h1", facts, 2, 2), "gpus").found, Contains("2: NVIDIA H200, 143771 MiB"));
  CHECK(about(judge_host("h1", facts, 3, 2), "gpus").verdict == Verdict::warn);
  CHECK_THAT(about(judge_host("h1", facts, 2, 2), "gpus").found, !Contains("--bind_cpus"));
  auto apart = facts;
  apart.gpus = "A, 1 MiB, driver 2, NUMA node 0; A, 1 MiB, driver 2, NUMA node 1; A, 1 MiB, driver 2, NUMA node 1";
  CHECK_THAT(about(judge_host("h1", apart, 3, 2), "gpus").found, Contains("on 2 NUMA nodes, and --bind_cpus node"));
  CHECK(judge_build("h2", facts, facts).verdict == Verdict::ok);
  auto other = facts;
  other.gpus = "NVIDIA A100-SXM4-80GB, 81920 MiB, driver 580.159.04";
  CHECK_THAT(judge_build("h2", other, facts).found, Contains("other GPUs: NVIDIA A100"));
  CHECK_THAT(judge_build("h2", healthy(), facts).found, Contains("other GPUs: none"));
  CHECK(judge_build("h2", facts, healthy()).verdict == Verdict::ok);  // from a host that only launches
  CHECK(host_facts_from_line(to_line(facts)) == facts);
}

TEST_CASE("[L06] doctor compares builds and clocks") {
  auto other = healthy();
  CHECK(judge_build("h2", other, healthy()).verdict == Verdict::ok);
  other.build_id = "ffff";
  CHECK(judge_build("h2", other, healthy()).verdict == Verdict::fail);
  CHECK_THAT(judge_build("h2", other, healthy()).found, Contains("ffff") && Contains("abcdef"));
  other = healthy();
  other.version = "2.0";
  CHECK(judge_build("h2", other, healthy()).verdict == Verdict::fail);

  CHECK(judge_clock("h2", 2ms, 1ms).verdict == Verdict::ok);
  CHECK_THAT(judge_clock("h2", -2ms, 1ms).found, Contains("2.0 ms behind") && Contains("500 us"));
  CHECK(judge_clock("h2", -700ms, 100ms).verdict == Verdict::warn);
  CHECK(judge_clock("h2", 700ms, 600ms).verdict == Verdict::ok);  // it may be the round trip
  CHECK(judge_clock("h2", -61s, 1ms).verdict == Verdict::fail);
}

TEST_CASE("[L06] doctor judges what a name resolves to") {
  const auto name = host_of("worker");
  CHECK(judge_name("h1", name, {"10.0.0.2"}, "", false, false).verdict == Verdict::ok);
  const auto absent = judge_name("h1", name, {}, "Name or service not known", false, false);
  CHECK(absent.verdict == Verdict::fail);
  CHECK_THAT(to_line(absent),
             Contains("worker has no address here: Name or service not known") && Contains("address=IP"));
  const auto itself = judge_name("h1", name, {"127.0.1.1"}, "", true, false);
  CHECK(itself.verdict == Verdict::fail);
  CHECK_THAT(itself.found, Contains("127.0.1.1") && Contains("other hosts cannot reach"));
  CHECK(judge_name("h1", name, {"10.0.0.2", "::1"}, "", false, false).verdict == Verdict::fail);
  CHECK(judge_name("h1", name, {"127.0.0.1"}, "", true, true).verdict == Verdict::ok);
  CHECK(judge_name("h1", name, {"10.0.0.2", "10.1.0.2"}, "", false, false).verdict == Verdict::warn);
}

TEST_CASE("[L06] doctor says what to do when ssh does not get through") {
  const auto host = host_of("worker user=ann");
  const auto judged = [&](const std::string& errors, int status) {
    return judge_ssh_failure(host, errors, status, "/opt/troupe");
  };
  CHECK_THAT(judged("banner\nann@worker: Permission denied (publickey).\r\n", 255).found,
             Contains("Permission denied") && !Contains("banner"));
  CHECK_THAT(judged("Permission denied (publickey).", 255).remedy, Contains("ssh-copy-id ann@worker"));
  CHECK_THAT(judged("Host key verification failed.", 255).remedy, Contains("ssh ann@worker"));
  CHECK_THAT(judged("ssh: Could not resolve hostname worker", 255).remedy, Contains("address=IP"));
  CHECK_THAT(judged("ssh: connect to host worker port 22: Connection refused", 255).remedy, Contains("sshd"));
  CHECK_THAT(judged("ssh: connect to host worker port 22: Connection timed out", 255).remedy, Contains("firewall"));
  CHECK_THAT(judged("something new", 255).remedy, Contains("by hand"));
  const auto absent = judged("env: '/opt/troupe': No such file or directory", 127);
  CHECK(absent.check == "troupe");
  CHECK_THAT(absent.remedy, Contains("--troupe"));
  CHECK(absent.verdict == Verdict::fail);
}

TEST_CASE("[L06] doctor measures every link of few hosts and a ring of many") {
  CHECK(links_to_measure(1).empty());
  CHECK(links_to_measure(2) == std::vector<std::pair<int, int>>{{0, 1}, {1, 0}});
  CHECK(links_to_measure(3).size() == 6);
  CHECK(links_to_measure(8).size() == 56);
  CHECK(links_to_measure(100).size() == 200);
  const auto hosts = parse_host_flag("a,b,c");
  const auto link = [](int from, int to, double rate) { return Link{from, to, {100us, rate}}; };
  const auto judged = judge_links(hosts, {link(0, 1, 1e9), link(1, 2, 1e9), link(0, 2, 1e8), link(2, 0, 1e9)});
  CHECK(judged[0].verdict == Verdict::ok);
  CHECK(judged[0].host == "a -> b");
  CHECK_THAT(judged[0].found, Contains("8.0 Gbit/s") && Contains("100 us"));
  CHECK(judged[2].verdict == Verdict::warn);
  CHECK_THAT(judged[2].remedy, Contains("8.0 Gbit/s"));
  CHECK(judge_links(hosts, {link(0, 1, 1e6)})[0].verdict == Verdict::warn);
  CHECK(judge_links(hosts, {}).empty());
}

TEST_CASE("[L06] findings are lines or JSON, and a failure is exit code 69") {
  const std::vector<Finding> findings = {{"h1", "clock", Verdict::ok, "2 us ahead", ""},
                                         {"", "shm", Verdict::warn, "a \"b\"\n\\", "mend it"}};
  CHECK(to_line(findings[0]) == "ok    h1        clock      2 us ahead");
  CHECK(to_line(findings[1]).starts_with("warn  here      shm        a "));
  const auto json = nlohmann::json::parse(to_json(findings));
  CHECK(json["findings"][1]["found"] == "a \"b\"\\x0a\\");
  CHECK((json["ok"] == 1 && json["warn"] == 1 && json["fail"] == 0));
  CHECK(exit_code(findings) == 0);
  CHECK(exit_code({findings[0], {"h1", "ssh", Verdict::fail, "no", "yes"}}) == 69);
}

TEST_CASE("[L06] a host's facts travel in one line") {
  auto facts = healthy();
  facts.run_dir = "/a b=c\t%25\n\xc3\xa4";
  facts.memory_limit = kUnlimited;
  const auto line = to_line(facts);
  CHECK(line.find('\n') == std::string::npos);
  CHECK(host_facts_from_line(line) == facts);
  CHECK(host_facts_from_line(R"({"cores":3,"future":7})").cores == 3);
  CHECK_THROWS_AS(host_facts_from_line(R"({"cores":"many"})"), Error);
  CHECK_THROWS_AS(host_facts_from_line(R"({"cores":-1})"), Error);
  CHECK_THROWS_AS(host_facts_from_line("nonsense"), Error);
  const auto here = gather_host_facts("1.0", "runs/absent/yet");
  CHECK(here.cores >= 1);
  CHECK(here.memory > 1 << 20);
  CHECK(here.run_dir.starts_with('/'));
  CHECK(here.run_dir_error.empty());
  CHECK_THAT(here.addresses, Contains("127.0.0.1"));
  CHECK(here.build_id == program_build_id());
  CHECK(here.build_id.size() >= 16);
  CHECK_FALSE(gather_host_facts("1.0", "/dev/null/runs").run_dir_error.empty());
}

TEST_CASE("[L06] the tightest control group above us is the memory limit") {
  std::map<std::string, std::string> files;
  const auto limit = [&](const char* groups) {
    return control_group_memory_limit(
        groups, [&](const std::string& path) { return files.contains(path) ? files[path] : std::string(); });
  };
  CHECK(limit("0::/\n") == kUnlimited);
  files = {{"/sys/fs/cgroup/memory.max", "max\n"}};
  CHECK(limit("0::/\n") == kUnlimited);
  files = {{"/sys/fs/cgroup/a/b/memory.max", "max\n"}, {"/sys/fs/cgroup/a/memory.max", "1073741824\n"}};
  CHECK(limit("0::/a/b\n") == kGiB);
  files = {{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
           {"/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2048\n"}};
  CHECK(limit("12:cpu,cpuacct:/\n4:memory:/job\n0::/\n") == 2048);
  CHECK(limit("nonsense\n::\n4:memory:relative") == kUnlimited);
}

TEST_CASE("[L06] a link is measured over TCP, for those with the token") {
  const TcpProbeServer server("127.0.0.1");
  const auto link = measure_link("127.0.0.1", server.port(), server.token(), 50ms);
  CHECK(link.bytes_per_second > 1e6);
  CHECK(link.round_trip > 0ns);
  CHECK(measure_link("127.0.0.1", server.port(), server.token(), 1ms).bytes_per_second > 0);  // one after the other
  CHECK_THROWS_WITH(measure_link("127.0.0.1", server.port(), std::string(32, '0'), 1ms), Contains("token"));
  CHECK_THROWS_AS(measure_link("127.0.0.1", server.port(), "", 1ms), Error);
  CHECK_THROWS_WITH(TcpProbeServer("192.0.2.77"), Contains("192.0.2.77") && Contains("address=A"));
  CHECK_THROWS_WITH(measure_link("no.such.host.invalid", 1, server.token(), 1ms), Contains("no.such.host.invalid"));
}

TEST_CASE("[K04] visitors of a link's server who stay silent hold nothing up, with its token or without") {
  const TcpProbeServer server("127.0.0.1");
  std::vector<int> visitors;
  const auto visit = [&](const std::string& says) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    visitors.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(visitors.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::send(visitors.back(), says.data(), says.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(says.size()));
  };
  for (int i = 0; i < 3; ++i) visit(server.token());
  visit(server.token() + "ppp");
  for (int i = 0; i < 200; ++i) visit(server.token().substr(0, 31));
  CHECK(measure_link("127.0.0.1", server.port(), server.token(), 1ms).bytes_per_second > 0);
  char answer = 0;
  for (int i = 0; i < 4; ++i) CHECK(::send(visitors[static_cast<std::size_t>(i)], "p", 1, MSG_NOSIGNAL) == 1);
  for (int i = 0; i < 4; ++i) {  // those with the token are still there
    CHECK(::recv(visitors[static_cast<std::size_t>(i)], &answer, 1, 0) == 1);
    CHECK(answer == 'k');
    CHECK(::recv(visitors[static_cast<std::size_t>(i)], &answer, 1, 0) == 1);
    CHECK(answer == 'p');
  }
  CHECK(::recv(visitors[4], &answer, 1, 0) <= 0);  // the oldest without it made place
  for (const int visitor : visitors) ::close(visitor);
}

TEST_CASE("[L06] doctor's agent answers each line with one line") {
  std::istringstream in(
      "clock\nresolve 127.0.0.1\nserve nonsense.invalid\nmeasure\nmeasure x 0 y 1\nwhat\n\nfacts /tmp\n");
  std::ostringstream out;
  serve_doctor(in, out, "1.0");
  std::istringstream said(out.str());
  std::vector<std::string> lines;
  for (std::string line; std::getline(said, line);) lines.push_back(line);
  REQUIRE(lines.size() == 9);
  CHECK(lines[0] == "troupe-doctor 1");
  CHECK(lines[1].starts_with("clock "));
  CHECK(lines[2] == "name resolved 127.0.0.1");
  for (int i = 3; i < 8; ++i) CHECK(lines[static_cast<std::size_t>(i)].starts_with("error "));
  CHECK(host_facts_from_line(lines[8].substr(6)).run_dir == "/tmp");
}

TEST_CASE("[L06] an agent that does not answer, or answers nonsense, is an error") {
  const auto session = [](const std::string& script) { return DoctorSession({"sh", "-c", script}); };
  auto noisy = session("echo welcome; echo troupe-doctor 1; read line; echo nonsense; read line; echo clock x");
  noisy.greet(30s);
  CHECK_THROWS_AS(noisy.facts("/"), Error);
  CHECK_THROWS_AS(noisy.clock(), Error);
  auto ends = session("echo banner; echo Permission denied >&2; exit 255");
  CHECK_THROWS_AS(ends.greet(30s), Error);
  CHECK(ends.ending().first == 255);
  CHECK_THAT(ends.ending().second, Contains("Permission denied"));
  auto endless = session("exec yes");
  CHECK_THROWS_AS(endless.greet(30s), Error);
  auto silent = session("exec sleep 1000");
  CHECK_THROWS_AS(silent.greet(0s), Error);
  CHECK(silent.ending().first == 128 + 9);
  CHECK_THROWS_WITH(DoctorSession({"/no/such/program"}), Contains("/no/such/program"));
}

TEST_CASE("[L06] doctor's flags are checked") {
  const DoctorOptions options{"/bin/false", "1.0", {}};
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--host", "a"},
                                                {"--hosts"},
                                                {"--hosts", ""},
                                                {"--hosts=a:0"},
                                                {"--hosts", "/no/such/file"},
                                                {"word"},
                                                {"--measure", "nowhere"},
                                                {"--measure", "a:0"},
                                                {"--measure", "a:99999"}})
    CHECK_THROWS_AS(doctor_command(words, options), Error);
}
