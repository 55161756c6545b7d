#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "tensor_io/communicator/nccl/nccl_api.hpp"
#include "tests/support/nccl_bytes.hpp"

namespace troupe::test {

/// Puts into a stream what a collective does to a device: a copy of `bytes` from `input` to `output` (where both are
/// the same, to memory of its own and back), which is not over before `wire_bytes` would have been sent. Returns 0, or
/// CUDA's error. Any thread.
class PacedCopy {
 public:
  virtual ~PacedCopy() = default;
  virtual int copy(const void* input, void* output, std::size_t bytes, std::size_t wire_bytes, bool reduces_all,
                   NcclStream stream) = 0;
  virtual int allocate(void** data, std::size_t bytes) = 0;
  virtual int free(void* data) = 0;
};

/// NCCL for one rank, whose collectives take the time that they would take between many: so that what hides
/// communication behind compute can be measured on one device, with our own streams and events. Reductions give what
/// one rank's sum is: the input.
///
/// What a ring of many ranks sends: all-reduce twice the tensor, the others the whole tensor once. Nothing is sent.
class PacedNccl final : public NcclApi {
 public:
  explicit PacedNccl(std::shared_ptr<PacedCopy> copies) : copies_(std::move(copies)) {}

  int version() override { return 22809; }
  NcclResult unique_id(std::string* id) override {
    id->assign(128, 'p');
    return NcclResult::success;
  }
  NcclResult init(NcclComm* comm, int world_size, const std::string&, int, const std::string&) override {
    if (world_size != 1) return NcclResult::invalid_usage;
    *comm = new_comm();
    return NcclResult::success;
  }
  NcclResult async_error(NcclComm, NcclResult* state) override {
    *state = NcclResult::success;
    return NcclResult::success;
  }
  std::string last_error(NcclComm) override { return {}; }
  NcclResult finalize(NcclComm) override { return NcclResult::success; }
  NcclResult destroy(NcclComm comm) override {
    delete static_cast<int*>(comm);
    return NcclResult::success;
  }
  NcclResult abort(NcclComm comm) override { return destroy(comm); }
  NcclResult split(NcclComm, int color, int, NcclComm* comm, const std::string&) override {
    *comm = color < 0 ? nullptr : new_comm();
    return NcclResult::success;
  }

  NcclResult memory(void** data, std::size_t bytes) override { return of(copies_->allocate(data, bytes)); }
  NcclResult free_memory(void* data) override { return of(copies_->free(data)); }
  NcclResult add_window(NcclComm, void*, std::size_t, void** window) override {
    *window = nullptr;
    return NcclResult::success;
  }
  NcclResult remove_window(NcclComm, void*) override { return NcclResult::success; }

  NcclResult group_start() override { return NcclResult::success; }
  NcclResult group_end() override { return NcclResult::success; }
  NcclResult all_reduce(const void* input, void* output, std::size_t count, NcclType type, NcclOp, NcclComm,
                        NcclStream stream) override {
    const auto bytes = count * bytes_of(type);
    return of(copies_->copy(input, output, bytes, 2 * bytes, true, stream));
  }
  NcclResult reduce_scatter(const void* input, void* output, std::size_t count, NcclType type, NcclOp, NcclComm,
                            NcclStream stream) override {
    return once(input, output, count, type, stream);
  }
  NcclResult all_gather(const void* input, void* output, std::size_t count, NcclType type, NcclComm,
                        NcclStream stream) override {
    return once(input, output, count, type, stream);
  }
  NcclResult broadcast(const void* input, void* output, std::size_t count, NcclType type, int, NcclComm,
                       NcclStream stream) override {
    return once(input, output, count, type, stream);
  }
  NcclResult reduce(const void* input, void* output, std::size_t count, NcclType type, NcclOp, int, NcclComm,
                    NcclStream stream) override {
    return once(input, output, count, type, stream);
  }
  // One rank has nobody to send to.
  NcclResult send(const void*, std::size_t, NcclType, int, NcclComm, NcclStream) override {
    return NcclResult::invalid_usage;
  }
  NcclResult recv(void*, std::size_t, NcclType, int, NcclComm, NcclStream) override {
    return NcclResult::invalid_usage;
  }

 private:
  static NcclComm new_comm() { return new int(0); }
  static NcclResult of(int error) { return error == 0 ? NcclResult::success : NcclResult::unhandled_cuda_error; }
  NcclResult once(const void* input, void* output, std::size_t count, NcclType type, NcclStream stream) {
    const auto bytes = count * bytes_of(type);
    return of(copies_->copy(input, output, bytes, bytes, false, stream));
  }

  std::shared_ptr<PacedCopy> copies_;
};

}  // namespace troupe::test
