#include "tensor_io/cuda/nccl_library.hpp"

#include <nccl.h>

#include <cstring>
#include <string>

namespace troupe {
namespace {

static_assert(int(NcclResult::success) == ncclSuccess &&
              int(NcclResult::unhandled_cuda_error) == ncclUnhandledCudaError &&
              int(NcclResult::system_error) == ncclSystemError &&
              int(NcclResult::internal_error) == ncclInternalError &&
              int(NcclResult::invalid_argument) == ncclInvalidArgument &&
              int(NcclResult::invalid_usage) == ncclInvalidUsage && int(NcclResult::remote_error) == ncclRemoteError &&
              int(NcclResult::in_progress) == ncclInProgress);
static_assert(int(NcclType::uint8) == ncclUint8 && int(NcclType::int32) == ncclInt32 &&
              int(NcclType::int64) == ncclInt64 && int(NcclType::f16) == ncclFloat16 &&
              int(NcclType::f32) == ncclFloat32 && int(NcclType::f64) == ncclFloat64 &&
              int(NcclType::bf16) == ncclBfloat16 && int(NcclType::f8e4m3) == ncclFloat8e4m3 &&
              int(NcclType::f8e5m2) == ncclFloat8e5m2);
static_assert(int(NcclOp::sum) == ncclSum && int(NcclOp::product) == ncclProd && int(NcclOp::max) == ncclMax &&
              int(NcclOp::min) == ncclMin && int(NcclOp::avg) == ncclAvg);

NcclResult of(ncclResult_t result) { return static_cast<NcclResult>(result); }
ncclComm_t comm_of(NcclComm comm) { return static_cast<ncclComm_t>(comm); }
cudaStream_t stream_of(NcclStream stream) { return static_cast<cudaStream_t>(stream); }
ncclDataType_t type_of(NcclType type) { return static_cast<ncclDataType_t>(type); }
ncclRedOp_t op_of(NcclOp op) { return static_cast<ncclRedOp_t>(op); }

// Calls return at once. What `split` makes shares nothing with its parent, though that would save memory: NCCL runs the
// kernels of communicators that share connections one after the other, in the order in which this rank's threads launch
// them, which may be another one than on the next rank; and the abort of one may take the others with it.
ncclConfig_t config_of(const std::string& name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 0;
  config.commName = name.c_str();  // NCCL copies it
  return config;
}

class NcclLibrary final : public NcclApi {
 public:
  int version() override {
    int version = 0;
    ncclGetVersion(&version);
    return version;
  }
  NcclResult unique_id(std::string* id) override {
    ncclUniqueId raw;
    const auto result = ncclGetUniqueId(&raw);
    id->assign(raw.internal, sizeof raw.internal);
    return of(result);
  }
  NcclResult init(NcclComm* comm, int world_size, const std::string& id, int rank, const std::string& name) override {
    ncclUniqueId raw;
    if (id.size() != sizeof raw.internal) return NcclResult::invalid_argument;
    std::memcpy(raw.internal, id.data(), sizeof raw.internal);
    auto config = config_of(name);
    return of(ncclCommInitRankConfig(reinterpret_cast<ncclComm_t*>(comm), world_size, raw, rank, &config));
  }
  NcclResult async_error(NcclComm comm, NcclResult* state) override {
    ncclResult_t raw = ncclSuccess;
    const auto result = ncclCommGetAsyncError(comm_of(comm), &raw);
    *state = of(raw);
    return of(result);
  }
  std::string last_error(NcclComm comm) override {
    const char* text = ncclGetLastError(comm_of(comm));
    return text == nullptr ? "" : text;
  }
  NcclResult finalize(NcclComm comm) override { return of(ncclCommFinalize(comm_of(comm))); }
  NcclResult destroy(NcclComm comm) override { return of(ncclCommDestroy(comm_of(comm))); }
  NcclResult abort(NcclComm comm) override { return of(ncclCommAbort(comm_of(comm))); }
  NcclResult split(NcclComm parent, int color, int key, NcclComm* comm, const std::string& name) override {
    auto config = config_of(name);
    return of(ncclCommSplit(comm_of(parent), color < 0 ? NCCL_SPLIT_NOCOLOR : color, key,
                            reinterpret_cast<ncclComm_t*>(comm), &config));
  }

  NcclResult memory(void** data, std::size_t bytes) override { return of(ncclMemAlloc(data, bytes)); }
  NcclResult free_memory(void* data) override {
    // It is taken out of the device's address space, whatever still runs; as cudaFree, wait for that.
    cudaDeviceSynchronize();
    return of(ncclMemFree(data));
  }
  NcclResult add_window(NcclComm comm, void* data, std::size_t bytes, void** window) override {
    return of(ncclCommWindowRegister(comm_of(comm), data, bytes, reinterpret_cast<ncclWindow_t*>(window),
                                     NCCL_WIN_COLL_SYMMETRIC));
  }
  NcclResult remove_window(NcclComm comm, void* window) override {
    return of(ncclCommWindowDeregister(comm_of(comm), static_cast<ncclWindow_t>(window)));
  }

  NcclResult group_start() override { return of(ncclGroupStart()); }
  NcclResult group_end() override { return of(ncclGroupEnd()); }
  NcclResult all_reduce(const void* input, void* output, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                        NcclStream stream) override {
    return of(ncclAllReduce(input, output, count, type_of(type), op_of(op), comm_of(comm), stream_of(stream)));
  }
  NcclResult reduce_scatter(const void* input, void* output, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                            NcclStream stream) override {
    return of(ncclReduceScatter(input, output, count, type_of(type), op_of(op), comm_of(comm), stream_of(stream)));
  }
  NcclResult all_gather(const void* input, void* output, std::size_t count, NcclType type, NcclComm comm,
                        NcclStream stream) override {
    return of(ncclAllGather(input, output, count, type_of(type), comm_of(comm), stream_of(stream)));
  }
  NcclResult broadcast(const void* input, void* output, std::size_t count, NcclType type, int root, NcclComm comm,
                       NcclStream stream) override {
    return of(ncclBroadcast(input, output, count, type_of(type), root, comm_of(comm), stream_of(stream)));
  }
  NcclResult reduce(const void* input, void* output, std::size_t count, NcclType type, NcclOp op, int root,
                    NcclComm comm, NcclStream stream) override {
    return of(ncclReduce(input, output, count, type_of(type), op_of(op), root, comm_of(comm), stream_of(stream)));
  }
  NcclResult send(const void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
                  NcclStream stream) override {
    return of(ncclSend(data, count, type_of(type), peer, comm_of(comm), stream_of(stream)));
  }
  NcclResult recv(void* data, std::size_t count, NcclType type, int peer, NcclComm comm, NcclStream stream) override {
    return of(ncclRecv(data, count, type_of(type), peer, comm_of(comm), stream_of(stream)));
  }
};

}  // namespace

std::shared_ptr<NcclApi> nccl_library() {
  static const auto library = std::make_shared<NcclLibrary>();
  return library;
}

}  // namespace troupe
