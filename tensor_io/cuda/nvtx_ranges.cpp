#include "tensor_io/cuda/nvtx_ranges.hpp"

#include <nvtx3/nvToolsExt.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace troupe {
namespace {

class NvtxRanges final : public SpanRanges {
 public:
  void push(const char* name) noexcept override {
    nvtxEventAttributes_t range{};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = name;
    nvtxDomainRangePushEx(domain_, &range);
  }
  void pop() noexcept override { nvtxDomainRangePop(domain_); }
  void name_thread(const char* name) noexcept override {
    nvtxNameOsThreadA(static_cast<std::uint32_t>(::syscall(SYS_gettid)), name);
  }

 private:
  const nvtxDomainHandle_t domain_ = nvtxDomainCreateA("troupe");
};

}  // namespace

SpanRanges& nvtx_ranges() noexcept {
  static auto* const ranges = new NvtxRanges;  // for threads that outlive main, too
  return *ranges;
}

}  // namespace troupe
