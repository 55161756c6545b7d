// `troupe doctor` alone, without LibTorch: what tests/net starts on its hosts. TROUPE_PROBE_VERSION stands for another
// build.
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>

#include "launch/doctor/doctor.hpp"
#include "tensor_io/base/error.hpp"

int main(int argc, char** argv) {
  try {
    char path[PATH_MAX];
    const auto n = ::readlink("/proc/self/exe", path, sizeof path);
    troupe::DoctorOptions options;
    options.troupe_program.assign(path, n > 0 ? static_cast<std::size_t>(n) : 0);
    const char* version = std::getenv("TROUPE_PROBE_VERSION");
    options.version = version == nullptr ? "probe" : version;
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.empty() || words[0] != "doctor") return std::fputs(troupe::kDoctorHelp, stderr), 2;
    return troupe::doctor_command({words.begin() + 1, words.end()}, options);
  } catch (const troupe::Error& error) {
    std::fprintf(stderr, "troupe: %s\n", error.what());
    return troupe::exit_code(error.code());
  }
}
