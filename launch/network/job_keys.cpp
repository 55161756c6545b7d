#include "launch/network/job_keys.hpp"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr long kValidSeconds = 7L * 24 * 3600;
constexpr long kClocksDiffer = 3600;  // between hosts
constexpr std::size_t kMostBytes = 64 << 10;
constexpr std::chrono::seconds kPatience{30};

template <auto Free>
struct Delete {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Delete<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Delete<X509_free>>;
using Bio = std::unique_ptr<BIO, Delete<BIO_free_all>>;

[[noreturn]] void refuse(const char* what) {
  char text[256] = "";
  ERR_error_string_n(ERR_get_error(), text, sizeof text);
  throw Error(ErrorCode::internal, std::string("making the job's keys: ") + what, text);
}

template <class Pointer>
Pointer made(Pointer pointer, const char* what) {
  if (!pointer) refuse(what);
  return pointer;
}

void check(int result, const char* what) {
  if (result <= 0) refuse(what);
}

Key make_key() { return made(Key(EVP_EC_gen("P-256")), "a key"); }

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const auto length = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(length)};
}

std::string pem_of(X509* certificate) {
  const auto bio = made(Bio(BIO_new(BIO_s_mem())), "memory");
  check(PEM_write_bio_X509(bio.get(), certificate), "a certificate's text");
  return text_of(bio.get());
}

std::string pem_of(EVP_PKEY* key) {
  const auto bio = made(Bio(BIO_new(BIO_s_mem())), "memory");
  check(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr), "a key's text");
  return text_of(bio.get());
}

void add_extension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  using Extension = std::unique_ptr<X509_EXTENSION, Delete<X509_EXTENSION_free>>;
  const auto extension = made(Extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value)), "an extension");
  check(X509_add_ext(certificate, extension.get(), -1), "an extension");
}

// Signed by `issuer`'s key; `issuer` null: by its own, an authority.
Certificate make_certificate(EVP_PKEY* key, const std::string& name, X509* issuer, EVP_PKEY* issuer_key,
                             std::time_t now) {
  auto certificate = made(Certificate(X509_new()), "a certificate");
  auto* raw = certificate.get();
  check(X509_set_version(raw, 2), "a version");
  std::array<unsigned char, 16> serial{};
  check(RAND_bytes(serial.data(), serial.size()), "random numbers");
  serial[0] &= 0x7f;
  using Number = std::unique_ptr<BIGNUM, Delete<BN_free>>;
  const auto number =
      made(Number(BN_bin2bn(serial.data(), static_cast<int>(serial.size()), nullptr)), "a serial number");
  if (BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(raw)) == nullptr) refuse("a serial number");
  if (X509_time_adj(X509_getm_notBefore(raw), -kClocksDiffer, &now) == nullptr ||
      X509_time_adj(X509_getm_notAfter(raw), kValidSeconds, &now) == nullptr)
    refuse("dates");
  check(X509_set_pubkey(raw, key), "a public key");
  auto* subject = X509_get_subject_name(raw);
  const auto text = name.substr(0, 64);  // what a common name may have
  check(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(text.c_str()),
                                   -1, -1, 0),
        "a name");
  check(X509_set_issuer_name(raw, issuer ? X509_get_subject_name(issuer) : subject), "an issuer");
  add_extension(raw, issuer ? issuer : raw, NID_basic_constraints,
                issuer ? "critical,CA:FALSE" : "critical,CA:TRUE,pathlen:0");
  add_extension(raw, issuer ? issuer : raw, NID_key_usage,
                issuer ? "critical,digitalSignature" : "critical,keyCertSign");
  if (issuer) add_extension(raw, issuer, NID_ext_key_usage, "serverAuth,clientAuth");
  check(X509_sign(raw, issuer_key, EVP_sha256()), "a signature");
  return certificate;
}

std::string hex(const unsigned char* bytes, std::size_t n) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < n; ++i) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

void write_secret(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) throw Error(ErrorCode::io, path, std::strerror(errno), "set TMPDIR to a folder that can be written to");
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  ::close(fd);
  if (!written) throw Error(ErrorCode::io, path, std::strerror(error), "free some space, or set TMPDIR");
}

// What OpenSSL makes of a file's text; it asks nobody for a password.
template <class Read>
void require_pem(const std::string& path, const std::string& text, Read read) {
  const Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  if (!read(bio.get())) throw Error(ErrorCode::bad_data, path, "it is damaged", "make new keys: troupe keys DIR");
}

std::string read_secret(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) throw Error(ErrorCode::io, path, std::strerror(errno), "is it a folder of a job's keys?");
  struct stat facts {};
  std::string text(kMostBytes + 1, '\0');
  const auto n = ::fstat(fd, &facts) == 0 ? ::read(fd, text.data(), text.size()) : -1;
  const int error = errno;
  ::close(fd);
  if (!S_ISREG(facts.st_mode)) throw Error(ErrorCode::bad_data, path, "it is not a regular file", "make new keys");
  if (n < 0) throw Error(ErrorCode::io, path, std::strerror(error));
  if ((facts.st_mode & 077) != 0)
    throw Error(ErrorCode::bad_data, path, "others may read it", "chmod 600, and make new keys");
  if (static_cast<std::size_t>(n) > kMostBytes) throw Error(ErrorCode::bad_data, path, "it is too long for a key");
  text.resize(static_cast<std::size_t>(n));
  return text;
}

// Those that are not there.
void write_files(const std::string& folder, const JobKeys& keys) {
  for (const auto& [path, text] : {std::pair(KeyFolder::authority(folder), &keys.authority),
                                   {KeyFolder::certificate(folder), &keys.certificate},
                                   {KeyFolder::key(folder), &keys.key},
                                   {folder + "/token", &keys.token}}) {
    struct stat facts {};
    if (::lstat(path.c_str(), &facts) != 0) write_secret(path, *text);
  }
}

std::string shown(const std::time_t* time) {
  char text[32] = "";
  tm utc{};
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", ::gmtime_r(time, &utc));
  return text;
}

std::string shown(const ASN1_TIME* time) {
  tm utc{};
  check(ASN1_TIME_to_tm(time, &utc), "a date");
  const auto seconds = ::timegm(&utc);
  return shown(&seconds);
}

bool is_token(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

struct KeyMaker::State {
  Key key;
  Certificate certificate;
  std::string token;
};

KeyMaker::KeyMaker() : state_(nullptr) {
  auto key = make_key();
  auto certificate = make_certificate(key.get(), "troupe job", nullptr, key.get(), std::time(nullptr));
  state_ = new State{std::move(key), std::move(certificate), random_token()};
}

KeyMaker::~KeyMaker() {
  OPENSSL_cleanse(state_->token.data(), state_->token.size());
  delete state_;
}

JobKeys KeyMaker::keys_for(const std::string& host, std::time_t now) const {
  const auto key = make_key();
  const auto certificate = make_certificate(key.get(), host, state_->certificate.get(), state_->key.get(), now);
  return {pem_of(state_->certificate.get()), pem_of(certificate.get()), pem_of(key.get()), state_->token};
}

std::string JobKeys::to_text() const {
  const nlohmann::json parts{authority, certificate, key, token};
  return parts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

JobKeys JobKeys::from_text(std::string_view text) {
  const auto parts = nlohmann::json::parse(text, nullptr, false);
  const auto require = [](bool good, const char* why) {
    if (!good)
      throw Error(ErrorCode::bad_data, "the job's keys", why, "the launcher sends them; is it the same version?");
  };
  require(parts.is_array() && parts.size() == 4, "they are not a list of four texts");
  JobKeys keys;
  auto next = parts.begin();
  for (auto* part : {&keys.authority, &keys.certificate, &keys.key, &keys.token}) {
    require(next->is_string(), "one is not a text");
    next++->get_to(*part);
    require(part->size() <= kMostBytes, "one is too long");
  }
  require(is_token(keys.token), "the token is not valid");
  return keys;
}

std::string JobKeys::framed() const { return to_text() + "\n"; }

JobKeys JobKeys::read_framed(int fd) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::string line;
  for (char next = 0; next != '\n';) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd ready{fd, POLLIN, 0};
    const auto n = left > 0 && ::poll(&ready, 1, static_cast<int>(left)) > 0 ? ::read(fd, &next, 1) : 0;
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0)
      throw Error(ErrorCode::bad_data, "the job's keys", "they did not come",
                  "the launcher sends them on standard input");
    line += next;
    if (line.size() > 4 * kMostBytes) throw Error(ErrorCode::bad_data, "the job's keys", "they are too long");
  }
  return from_text(line);
}

void KeyFolder::require_private(const std::string& folder) {
  struct stat facts {};
  if (::lstat(folder.c_str(), &facts) != 0)
    throw Error(ErrorCode::io, folder, std::strerror(errno), "is it a folder of a job's keys?");
  if (!S_ISDIR(facts.st_mode) || (facts.st_mode & 077) != 0 || facts.st_uid != ::geteuid())
    throw Error(ErrorCode::bad_data, folder, "it is not a folder that only this user can access",
                "chmod 700, and make new keys");
}

KeyFolder::KeyFolder(JobKeys keys) : keys_(std::move(keys)) {
  const char* parent = std::getenv("TMPDIR");
  std::string pattern = std::string(parent != nullptr && *parent != '\0' ? parent : "/tmp") + "/troupe-keys-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr)
    throw Error(ErrorCode::io, pattern, std::strerror(errno), "set TMPDIR to a folder that can be written to");
  path_ = pattern;  // mode 0700
  try {
    write_files(path_, keys_);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    throw;
  }
}

void KeyFolder::write(const std::string& folder, const JobKeys& keys) {
  if (::mkdir(folder.c_str(), 0700) != 0)
    throw Error(ErrorCode::io, folder, std::strerror(errno), "name a folder that does not exist yet");
  write_files(folder, keys);
}

KeyFolder::~KeyFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void KeyFolder::restore() const {
  if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST)
    throw Error(ErrorCode::io, path_, std::strerror(errno), "set TMPDIR to a folder that stays");
  require_private(path_);
  write_files(path_, keys_);
}

void KeyFolder::require_dates(const std::string& folder, const JobKeys& keys, std::time_t now) {
  const Bio bio(BIO_new_mem_buf(keys.certificate.data(), static_cast<int>(keys.certificate.size())));
  const auto certificate =
      made(Certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)), "a certificate's dates");
  const auto* begin = X509_get0_notBefore(certificate.get());
  const auto* end = X509_get0_notAfter(certificate.get());
  if (X509_cmp_time(begin, &now) > 0)
    throw Error(ErrorCode::bad_data, folder,
                "its keys begin " + shown(begin) + ", and this host's clock says " + shown(&now),
                "set the clock, or make new keys: troupe keys DIR");
  if (X509_cmp_time(end, &now) < 0)
    throw Error(ErrorCode::bad_data, folder,
                "its keys have expired: " + shown(end) + ", and this host's clock says " + shown(&now),
                "make new ones: troupe keys DIR");
}

JobKeys KeyFolder::read(const std::string& folder) {
  require_private(folder);
  JobKeys keys{read_secret(authority(folder)), read_secret(certificate(folder)), read_secret(key(folder)),
               read_secret(folder + "/token")};
  if (!is_token(keys.token))
    throw Error(ErrorCode::bad_data, folder + "/token", "it is not a token of 64 hexadecimal digits", "make new keys");
  const auto no_password = [](char*, int, int, void*) { return 0; };
  const auto is_certificate = [](BIO* bio) {
    return Certificate(PEM_read_bio_X509(bio, nullptr, nullptr, nullptr)) != nullptr;
  };
  require_pem(authority(folder), keys.authority, is_certificate);
  require_pem(certificate(folder), keys.certificate, is_certificate);
  require_pem(key(folder), keys.key,
              [&](BIO* bio) { return Key(PEM_read_bio_PrivateKey(bio, nullptr, no_password, nullptr)) != nullptr; });
  return keys;
}

std::string hmac_text(std::string_view key, std::string_view message) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, message.size(), digest.data(), &length) ==
      nullptr)
    refuse("an HMAC");
  return hex(digest.data(), length);
}

bool equal_secrets(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_token() {
  std::array<unsigned char, 32> bytes{};
  check(RAND_bytes(bytes.data(), bytes.size()), "random numbers");
  return hex(bytes.data(), bytes.size());
}

}  // namespace troupe
