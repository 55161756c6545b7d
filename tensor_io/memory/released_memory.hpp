#pragma once
#include <cstddef>
#include <string>

namespace troupe {

/// Addresses of a tensor whose values are elsewhere now, such as a gathered unit's between its calls: no memory stands
/// behind them. A read or write there is a SIGSEGV, as at a null pointer, but the signal's handler can say which tensor
/// it was.
class AbsentMemory {
 public:
  /// `what` explains an access to one of `bytes` addresses from data(): a sentence of at most 240 characters, cut if it
  /// is longer.
  AbsentMemory(std::size_t bytes, const std::string& what);
  ~AbsentMemory();
  AbsentMemory(const AbsentMemory&) = delete;
  AbsentMemory& operator=(const AbsentMemory&) = delete;

  /// nullptr if the process may have no more addresses.
  void* data() const noexcept { return data_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// The explanation of the address; nullptr for all others. May be called in a signal handler.
const char* absent_memory_at(const void* address) noexcept;

}  // namespace troupe
