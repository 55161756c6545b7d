#include "launch/network/job_keys.hpp"

#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

std::shared_ptr<X509> certificate_of(const std::string& pem) {
  const std::shared_ptr<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free_all);
  return {PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free};
}

// As TLS does it: 0, or why not.
int verify(const JobKeys& trusts, const JobKeys& shows) {
  const std::shared_ptr<X509_STORE> store(X509_STORE_new(), X509_STORE_free);
  X509_STORE_add_cert(store.get(), certificate_of(trusts.authority).get());
  const std::shared_ptr<X509_STORE_CTX> context(X509_STORE_CTX_new(), X509_STORE_CTX_free);
  const auto shown = certificate_of(shows.certificate);
  X509_STORE_CTX_init(context.get(), store.get(), shown.get(), nullptr);
  X509_STORE_CTX_set_purpose(context.get(), X509_PURPOSE_SSL_SERVER);
  X509_verify_cert(context.get());
  return X509_STORE_CTX_get_error(context.get());
}

int mode_of(const std::string& path) {
  struct stat facts {};
  REQUIRE(::stat(path.c_str(), &facts) == 0);
  return static_cast<int>(facts.st_mode & 0777);
}

}  // namespace

TEST_CASE("[L08] a job's certificates are of its own authority, and no other job's") {
  const KeyMaker job, other;
  const auto host = job.keys_for("a"), second = job.keys_for(std::string(300, 'b')), stranger = other.keys_for("a");
  CHECK(verify(host, host) == X509_V_OK);
  CHECK(verify(host, second) == X509_V_OK);
  CHECK(verify(host, stranger) != X509_V_OK);
  CHECK(host.key != second.key);
  CHECK(host.certificate != second.certificate);
  CHECK(host.token == second.token);
  CHECK(host.token != stranger.token);
  // A host's certificate is no authority: it cannot make others.
  CHECK(X509_check_ca(certificate_of(host.certificate).get()) == 0);
  CHECK(X509_cmp_current_time(X509_get0_notAfter(certificate_of(host.certificate).get())) > 0);
  auto in_eight_days = std::time(nullptr) + 8 * 24 * 3600;
  CHECK(X509_cmp_time(X509_get0_notAfter(certificate_of(host.certificate).get()), &in_eight_days) < 0);
}

TEST_CASE("[K03] a job does not begin with keys whose dates are not now's, and says by which clock") {
  const auto now = std::time(nullptr);
  const auto refusal = [&](std::time_t made) -> std::string {
    try {
      KeyFolder::require_dates("job-keys", KeyMaker().keys_for("a", made), now);
      return {};
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_data);
      return error.what();
    }
  };
  CHECK(refusal(now).empty());
  CHECK(refusal(now - 6 * 24 * 3600).empty());
  CHECK(refusal(now + 30 * 60).empty());  // clocks of two hosts
  CHECK_THAT(refusal(now - 8 * 24 * 3600), Catch::Contains("job-keys: its keys have expired: ") &&
                                               Catch::Contains("this host's clock says") &&
                                               Catch::Contains("make new ones: troupe keys DIR"));
  CHECK_THAT(refusal(now + 2 * 3600), Catch::Contains("its keys begin ") && Catch::Contains("set the clock"));
}

TEST_CASE("[K03] what a cleaner removes of a job's keys is made again before a process starts") {
  const KeyFolder folder(KeyMaker().keys_for("a"));
  const auto key = KeyFolder::read(folder.path()).key;
  std::filesystem::remove(KeyFolder::key(folder.path()));
  folder.restore();
  CHECK(KeyFolder::read(folder.path()).key == key);
  std::filesystem::remove_all(folder.path());
  folder.restore();
  CHECK(KeyFolder::read(folder.path()).key == key);
  CHECK(mode_of(folder.path()) == 0700);
  std::filesystem::remove_all(folder.path());
  std::filesystem::create_directory(folder.path());
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0777));
  CHECK_THROWS_WITH(folder.restore(), Catch::Contains("not a folder that only this user can access"));
}

TEST_CASE("[L08] keys lie in a folder that only their user reads, and go with it") {
  const auto keys = KeyMaker().keys_for("a");
  std::string path;
  {
    const KeyFolder folder(keys);
    path = folder.path();
    CHECK(mode_of(path) == 0700);
    for (const auto& entry : std::filesystem::directory_iterator(path)) CHECK(mode_of(entry.path()) == 0600);
    const auto read = KeyFolder::read(path);
    CHECK(read.authority == keys.authority);
    CHECK(read.certificate == keys.certificate);
    CHECK(read.key == keys.key);
    CHECK(read.token == keys.token);
    ::chmod(KeyFolder::key(path).c_str(), 0644);
    CHECK_THROWS_WITH(KeyFolder::read(path), Catch::Contains("key.pem") && Catch::Contains("others may read it"));
    ::chmod(KeyFolder::key(path).c_str(), 0600);
    ::chmod(path.c_str(), 0755);
    CHECK_THROWS_WITH(KeyFolder::read(path), Catch::Contains("not a folder that only this user can access"));
    ::chmod(path.c_str(), 0700);
    std::filesystem::rename(KeyFolder::key(path), path + "/kept");
    REQUIRE(::mkfifo(KeyFolder::key(path).c_str(), 0600) == 0);
    CHECK_THROWS_WITH(KeyFolder::read(path), Catch::Contains("key.pem") && Catch::Contains("not a regular file"));
    std::filesystem::rename(path + "/kept", KeyFolder::key(path));
    std::ofstream(path + "/token") << "none";
    CHECK_THROWS_WITH(KeyFolder::read(path), Catch::Contains("not a token of 64"));
  }
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_THROWS_WITH(KeyFolder::read(path), Catch::Contains("is it a folder of a job's keys?"));
}

TEST_CASE("[L08] keys come through a pipe whole, or are refused") {
  const auto keys = KeyMaker().keys_for("a");
  const auto text = keys.to_text();
  CHECK(JobKeys::from_text(text).to_text() == text);
  for (std::size_t n = 0; n < text.size(); ++n) CHECK_THROWS_AS(JobKeys::from_text(text.substr(0, n)), Error);
  for (const auto& bad :
       std::vector<std::string>{"x\n", "\n", "7", "{}", text + "x", "[" + text + "]", R"(["","",""])",
                                R"(["","","",1])", R"(["","","",")" + std::string(64, 'g') + R"("])",
                                "[\"" + std::string((64 << 10) + 1, 'a') + R"(","","",")" + keys.token + R"("])"})
    CHECK_THROWS_AS(JobKeys::from_text(bad), Error);
}

TEST_CASE("[L08] what follows the keys in a pipe stays there") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const auto keys = KeyMaker().keys_for("a");
  const auto sent = keys.framed() + "T";
  REQUIRE(::write(ends[1], sent.data(), sent.size()) == static_cast<ssize_t>(sent.size()));
  CHECK(JobKeys::read_framed(ends[0]).to_text() == keys.to_text());
  char next = 0;
  CHECK(::read(ends[0], &next, 1) == 1);
  CHECK(next == 'T');
  for (const std::string bad : {"x\n", "[7]\n", "5abc"}) {
    REQUIRE(::write(ends[1], bad.data(), bad.size()) == static_cast<ssize_t>(bad.size()));
    if (bad[0] == '5') ::close(ends[1]);
    CHECK_THROWS_AS(JobKeys::read_framed(ends[0]), Error);
    for (int flags = ::fcntl(ends[0], F_SETFL, O_NONBLOCK); flags == 0 && ::read(ends[0], &next, 1) == 1;) {
    }
    ::fcntl(ends[0], F_SETFL, 0);
  }
  ::close(ends[0]);
}

TEST_CASE("[L08] an HMAC is the standard's") {
  // RFC 4231, test case 2.
  CHECK(hmac_text("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(equal_secrets("abc", "abc"));
  CHECK_FALSE(equal_secrets("abc", "abd"));
  CHECK_FALSE(equal_secrets("abc", "abcd"));
  CHECK(random_token().size() == 64);
  CHECK(random_token() != random_token());
}
