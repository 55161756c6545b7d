#include "launch/network/sha256.hpp"

#include <openssl/evp.h>

#include <array>

#include "tensor_io/base/error.hpp"

namespace troupe {

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{EVP_MD_CTX_new(), &EVP_MD_CTX_free};

  static void check(bool done) {
    if (!done) throw Error(ErrorCode::internal, "SHA-256", "OpenSSL cannot compute it");
  }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  State::check(state_->context && EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::add(std::string_view bytes) {
  State::check(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  State::check(EVP_DigestFinal_ex(state_->context.get(), digest.data(), &size) == 1);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

}  // namespace troupe
