#include "launch/process/build_id.hpp"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace troupe {
namespace {

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

// The first object is the program itself; its notes are in memory.
int find_note(dl_phdr_info* info, std::size_t, void* result) {
  auto& id = *static_cast<std::string*>(result);
  for (int i = 0; i < info->dlpi_phnum && id.empty(); ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* at =
        reinterpret_cast<const unsigned char*>(info->dlpi_addr + segment.p_vaddr);  // NOLINT: the loader's own address
    for (const auto* end = at + segment.p_memsz; at + sizeof(ElfW(Nhdr)) <= end;) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const auto* name = at + sizeof note;
      const auto* text = name + aligned(note.n_namesz);
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        char digits[3];
        for (unsigned k = 0; k < note.n_descsz; ++k)
          id += (std::snprintf(digits, sizeof digits, "%02x", text[k]), digits);
      }
      at = text + aligned(note.n_descsz);
    }
  }
  return 1;
}

// FNV-1a: it tells builds apart, no more.
std::string hash_of_file(const char* path) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return "unknown";
  std::uint64_t hash = 0xcbf29ce484222325;
  unsigned char block[1 << 16];
  for (ssize_t n = 0; (n = ::read(file, block, sizeof block)) > 0;) {
    for (ssize_t i = 0; i < n; ++i) hash = (hash ^ block[i]) * 0x100000001b3;
  }
  ::close(file);
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

}  // namespace

std::string program_build_id() {
  static const std::string known = [] {
    std::string id;
    ::dl_iterate_phdr(find_note, &id);
    return id.empty() ? hash_of_file("/proc/self/exe") : id;
  }();
  return known;
}

}  // namespace troupe
