#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace troupe {

// The used part of NCCL, without its header: all decisions lie in files that need no CUDA, and are tested without a
// device. nccl_library.cpp checks these numbers against nccl.h's when it is compiled.

enum class NcclResult : std::uint8_t {
  success = 0,
  unhandled_cuda_error,
  system_error,
  internal_error,
  invalid_argument,
  invalid_usage,
  remote_error,
  in_progress
};
/// The call is over, or goes on in the background.
constexpr bool is_launched(NcclResult result) noexcept {
  return result == NcclResult::success || result == NcclResult::in_progress;
}
enum class NcclType : std::uint8_t { uint8 = 1, int32 = 2, int64 = 4, f16 = 6, f32, f64, bf16, f8e4m3, f8e5m2 };
enum class NcclOp : std::uint8_t { sum = 0, product, max, min, avg };

using NcclComm = void*;    ///< ncclComm_t
using NcclStream = void*;  ///< cudaStream_t

/// NCCL's calls, one to one, non-blocking: each, even after success, may go on in the background until async_error says
/// otherwise, and only abort is allowed until then. But for async_error, one thread at a time per communicator.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual int version() = 0;  ///< 22809 is 2.28.9
  virtual NcclResult unique_id(std::string* id) = 0;
  /// `name` is the communicator's in NCCL's log (NCCL_DEBUG=INFO).
  virtual NcclResult init(NcclComm* comm, int world_size, const std::string& id, int rank, const std::string& name) = 0;
  virtual NcclResult async_error(NcclComm comm, NcclResult* state) = 0;
  virtual std::string last_error(NcclComm comm) = 0;
  virtual NcclResult finalize(NcclComm comm) = 0;
  virtual NcclResult destroy(NcclComm comm) = 0;
  virtual NcclResult abort(NcclComm comm) = 0;
  /// A negative color: no new communicator, `*comm` is nullptr.
  virtual NcclResult split(NcclComm parent, int color, int key, NcclComm* comm, const std::string& name) = 0;

  virtual NcclResult memory(void** data, std::size_t bytes) = 0;
  virtual NcclResult free_memory(void* data) = 0;
  /// Collective. `*window` stays nullptr if the machine has no use for windows.
  virtual NcclResult add_window(NcclComm comm, void* data, std::size_t bytes, void** window) = 0;
  virtual NcclResult remove_window(NcclComm comm, void* window) = 0;

  virtual NcclResult group_start() = 0;
  virtual NcclResult group_end() = 0;
  virtual NcclResult all_reduce(const void* input, void* output, std::size_t count, NcclType, NcclOp, NcclComm,
                                NcclStream) = 0;
  /// `count` elements of output.
  virtual NcclResult reduce_scatter(const void* input, void* output, std::size_t count, NcclType, NcclOp, NcclComm,
                                    NcclStream) = 0;
  /// `count` elements of input.
  virtual NcclResult all_gather(const void* input, void* output, std::size_t count, NcclType, NcclComm, NcclStream) = 0;
  virtual NcclResult broadcast(const void* input, void* output, std::size_t count, NcclType, int root, NcclComm,
                               NcclStream) = 0;
  virtual NcclResult reduce(const void* input, void* output, std::size_t count, NcclType, NcclOp, int root, NcclComm,
                            NcclStream) = 0;
  virtual NcclResult send(const void* data, std::size_t count, NcclType, int peer, NcclComm, NcclStream) = 0;
  virtual NcclResult recv(void* data, std::size_t count, NcclType, int peer, NcclComm, NcclStream) = 0;
};

}  // namespace troupe
