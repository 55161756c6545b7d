#pragma once
#include <cstddef>
#include <string>

namespace troupe {

/// Addresses of a tensor whose values are elsewhere now, a gathered unit's between its calls: no memory stands behind
/// them. Who reads or writes there meets SIGSEGV, as at a null pointer, but the handler of the signal can tell what it
/// was.
class AbsentMemory {
 public:
  /// `what` is told to whoever touches one of `bytes` addresses from data(): a sentence of at most 240 characters, cut
  /// where it is longer.
  AbsentMemory(std::size_t bytes, const std::string& what);
  ~AbsentMemory();
  AbsentMemory(const AbsentMemory&) = delete;
  AbsentMemory& operator=(const AbsentMemory&) = delete;

  /// nullptr where the process may have no more addresses.
  void* data() const noexcept { return data_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// What was to be told of the address; nullptr for all others. May be called in a signal handler.
const char* absent_memory_at(const void* address) noexcept;

}  // namespace troupe
