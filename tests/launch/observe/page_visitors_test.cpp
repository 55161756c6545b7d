// Who may read the live page of a run, and what visitors cost that want nothing good.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <list>
#include <regex>
#include <string>

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "launch/observe/metrics_page.hpp"
#include "tests/support/launch.hpp"
#include "tests/support/peak_memory.hpp"

using namespace troupe;
using testing::Launch;

namespace {

constexpr std::size_t kMiB = 1 << 20;

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// A connection to a port of loopback, without a library's manners.
class RawClient {
 public:
  explicit RawClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto address = loopback(port);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { ::close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  bool connected() const { return connected_; }

  bool send(std::string_view text) {
    while (!text.empty()) {
      const auto n = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent_ += static_cast<std::size_t>(n);
      text.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  /// Sends `text` again and again: how many bytes the other side took before it closed, `most` at most.
  std::size_t send_endlessly(const std::string& text, std::size_t most) {
    while (sent_ < most && send(text)) continue;
    return sent_;
  }
  /// Waits for the first byte of the answer, which stays unread. False: the connection ended instead.
  bool has_answer() {
    char first = 0;
    return ::recv(fd_, &first, 1, MSG_PEEK) == 1;
  }

 private:
  const int fd_;
  bool connected_ = false;
  std::size_t sent_ = 0;
};

int vacant_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto address = loopback(0);
  socklen_t bytes = sizeof address;
  const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  ::close(fd);
  REQUIRE(bound);
  return ntohs(address.sin_port);
}

int status_of(int port, const std::string& path, const httplib::Headers& headers = {}) {
  const auto answer = httplib::Client("127.0.0.1", port).Get(path, headers);
  return answer ? answer->status : 0;
}

MetricRecord long_record(std::int64_t step) {
  MetricRecord record;
  record.step = record.steps_from = step;
  record.ranks.assign(512, {1, 2, 3});
  return record;
}

}  // namespace

TEST_CASE("[K04] the live page reads a request's header, and no more, however much a visitor sends") {
  const int port = vacant_port();
  MetricsPage page(static_cast<std::uint16_t>(port), "job");
  const std::string block(64 << 10, 'a'), host = "Host: localhost\r\n";
  struct Flood {
    const char* what;
    std::string begin, again;
  };
  const std::string chunk = "10000\r\n" + block + "\r\n";
  const std::vector<Flood> floods{
      {"a body with a length", "POST / HTTP/1.1\r\n" + host + "Content-Length: 1572864000\r\n\r\n", block},
      {"a body in chunks", "POST /records HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n", chunk},
      {"a body without a length", "PUT / HTTP/1.0\r\n" + host + "\r\n", block},
      {"a body of a GET", "GET / HTTP/1.1\r\n" + host + "Content-Length: 1572864000\r\n\r\n", block},
      {"chunks of a GET", "GET /metrics HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n", chunk},
      {"an endless chunk's length", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n", block},
      {"a request line", "GET /", block},
      {"a header", "GET / HTTP/1.1\r\n" + host + "X: ", block},
      {"headers", "GET / HTTP/1.1\r\n" + host, "X: a\r\n"},
      {"no request", "\r\n", "\r\n"},
  };
  const testing::PeakMemory memory;
  for (const auto& flood : floods) {
    INFO(flood.what);
    RawClient visitor(port);
    REQUIRE(visitor.connected());
    REQUIRE(visitor.send(flood.begin));
    CHECK(visitor.send_endlessly(flood.again, 200 * kMiB) < 32 * kMiB);  // what sockets hold
    CHECK(status_of(port, "/metrics") == 200);
  }
  REQUIRE(memory.mib() >= 0);
  CHECK(memory.mib() < 32);
}

TEST_CASE("[K04] the live page answers GET and HEAD, and refuses every other method") {
  const int port = vacant_port();
  MetricsPage page(static_cast<std::uint16_t>(port), "job");
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get"}) {
    INFO(method);
    httplib::Request request;
    request.method = method;
    request.path = "/";
    const auto answer = httplib::Client("127.0.0.1", port).send(request);
    REQUIRE(answer);
    CHECK(answer->status == 405);
    CHECK(answer->get_header_value("Allow") == "GET, HEAD");
    CHECK(answer->get_header_value("Connection") == "close");
  }
  const auto head = httplib::Client("127.0.0.1", port).Head("/");
  REQUIRE(head);
  CHECK(head->status == 200);
  CHECK(std::stoul(head->get_header_value("Content-Length")) > 1000);
  CHECK(head->body.empty());
}

TEST_CASE("[K04] 1,000 visitors who read none of the live page's answers cost memory for a few of them") {
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
  const int port = vacant_port();
  MetricsPage page(static_cast<std::uint16_t>(port), "job");
  for (int step = 0; step < 1000; ++step) page.write(long_record(step));
  REQUIRE(page.records(0).size() > 200'000);
  REQUIRE(page.records(0).find("\"more\":true") != std::string::npos);
  const testing::PeakMemory memory;
  {
    std::list<RawClient> visitors;
    for (int i = 0; i < 1000; ++i) {
      visitors.emplace_back(port);
      REQUIRE(visitors.back().connected());
      REQUIRE(visitors.back().send("GET /records HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    }
    auto visitor = visitors.begin();
    for (unsigned i = 0; i < MetricsPage::kPlaces; ++i) CHECK((visitor++)->has_answer());
    REQUIRE(memory.mib() >= 0);
    CHECK(memory.mib() < 32);
  }
  CHECK(status_of(port, "/metrics") == 200);
}

TEST_CASE("[K04] the live page is read by its owner's processes, and by others with its token") {
  const int port = vacant_port();
  const auto number = static_cast<std::uint16_t>(port);
  const std::string token(64, 'c'), near = token.substr(1) + "d";
  const auto bearer = [](const std::string& text) { return httplib::Headers{{"Authorization", "Bearer " + text}}; };
  for (const bool is_owner : {true, false}) {
    INFO("is the owner: " << is_owner);
    MetricsPage page(number, "job", token, is_owner ? ::geteuid() : ::geteuid() + 1);
    CHECK(page.address() == "http://127.0.0.1:" + std::to_string(port) + "/?token=" + token);
    for (const std::string path : {"/", "/records", "/metrics"}) {
      INFO(path);
      CHECK(status_of(port, path) == (is_owner ? 200 : 403));
      CHECK(status_of(port, path + "?token=" + token) == 200);
      CHECK(status_of(port, path, bearer(token)) == 200);
      for (const auto& wrong : {near, token.substr(1), token + "c", std::string("c")}) {
        INFO(wrong);
        CHECK(status_of(port, path + "?token=" + wrong) == 403);
        CHECK(status_of(port, path, bearer(wrong)) == 403);
      }
    }
  }
  {
    MetricsPage page(number, "job");
    CHECK(status_of(port, "/") == 200);
    CHECK(status_of(port, "/?token=c") == 403);
  }
  MetricsPage page(number, "job", "", ::geteuid() + 1);
  CHECK(status_of(port, "/") == 0);
}

TEST_CASE("[K04] other users' visitors hold a few of the live page's places, and leave the rest to its owner") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: only root can be another user");
    return;
  }
  const int port = vacant_port();
  const std::string token(64, 'c');
  MetricsPage page(static_cast<std::uint16_t>(port), "job", token);
  const auto as_other = [](const auto& work) {
    ::setfsuid(65534);
    work();
    ::setfsuid(0);
  };
  std::list<RawClient> others;
  as_other([&] {
    CHECK(status_of(port, "/metrics") == 403);
    CHECK(status_of(port, "/metrics?token=" + token) == 200);
    for (unsigned i = 0; i < MetricsPage::kPlacesOfOthers; ++i) {
      others.emplace_back(port);
      REQUIRE(others.back().send("GET / HTTP/1.1\r\n"));
    }
    RawClient one_more(port);
    one_more.send("GET /metrics?token=" + token + " HTTP/1.1\r\nHost: localhost\r\n\r\n");  // it may be closed already
    CHECK_FALSE(one_more.has_answer());
  });
  CHECK(status_of(port, "/metrics") == 200);
}

TEST_CASE("[K04] a run prints the page's address with its token, which stays when another process becomes rank 0") {
  const int port = vacant_port();
  Launch launch(
      2, {"--epochs", "4000", "--log_interval", "4", "--pause_ms", "10", "--metrics_port", std::to_string(port)}, {});
  const std::regex line(R"(live page: http://127\.0\.0\.1:([0-9]+)(/\?token=([0-9a-f]{64})))");
  REQUIRE(launch.wait_for("step 4/"));
  std::smatch found;
  REQUIRE(std::regex_search(launch.output(), found, line));
  CHECK(found[1] == std::to_string(port));
  const std::string path = found[2];
  CHECK(status_of(port, path) == 200);
  CHECK(status_of(port, path.substr(0, path.size() - 1)) == 403);
  const auto rank_0 = testing::pid_said_by(launch.output(), "[rank 0] pid ");
  REQUIRE(rank_0 > 0);
  const auto mark = launch.output().size();
  REQUIRE(::kill(rank_0, SIGKILL) == 0);
  REQUIRE(launch.wait_until([&] { return launch.output().find("live page: ", mark) != std::string::npos; }));
  CHECK(status_of(port, path) == 200);
  launch.signal(SIGINT);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 130);
}
