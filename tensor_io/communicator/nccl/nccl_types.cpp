#include "tensor_io/communicator/nccl/nccl_types.hpp"

namespace troupe {

NcclType nccl_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return NcclType::f32;
    case at::kDouble: return NcclType::f64;
    case at::kHalf: return NcclType::f16;
    case at::kBFloat16: return NcclType::bf16;
    case at::kInt: return NcclType::int32;
    case at::kLong: return NcclType::int64;
    case at::kByte:
    case at::kBool: return NcclType::uint8;
    case at::kFloat8_e4m3fn: return NcclType::f8e4m3;
    case at::kFloat8_e5m2: return NcclType::f8e5m2;
    default:
      throw Error(ErrorCode::usage, "nccl", std::string("NCCL has no type for ") + c10::toString(dtype),
                  "use f32, bf16 or f16");
  }
}

NcclOp nccl_op(ReduceOp op, at::ScalarType dtype) {
  const bool is_bool = dtype == at::kBool;
  switch (op) {
    case ReduceOp::sum: return is_bool ? NcclOp::max : NcclOp::sum;
    case ReduceOp::product: return is_bool ? NcclOp::min : NcclOp::product;
    case ReduceOp::min: return NcclOp::min;
    case ReduceOp::max: return NcclOp::max;
    case ReduceOp::avg: return NcclOp::avg;
  }
  throw Error(ErrorCode::internal, "nccl", "unchecked reduce op " + std::to_string(static_cast<int>(op)));
}

std::string_view to_string(NcclResult result) noexcept {
  switch (result) {
    case NcclResult::success: return "success";
    case NcclResult::unhandled_cuda_error: return "unhandled CUDA error";
    case NcclResult::system_error: return "system error";
    case NcclResult::internal_error: return "internal error";
    case NcclResult::invalid_argument: return "invalid argument";
    case NcclResult::invalid_usage: return "invalid usage";
    case NcclResult::remote_error: return "remote error";
    case NcclResult::in_progress: return "in progress";
  }
  return "unknown result";
}

ErrorReport nccl_failure(NcclResult result, const std::string& call, const std::string& detail) {
  ErrorReport report;
  report.cause = "NCCL " + call + ": " + std::string(to_string(result)) + (detail.empty() ? "" : " (" + detail + ")");
  if (detail.find("Duplicate GPU") != std::string::npos) {
    report.code = ErrorCode::usage;
    report.remedy = "give each rank its own device, or let ranks share one with --share_device";
    return report;
  }
  switch (result) {
    case NcclResult::remote_error:
      report.code = ErrorCode::peer_lost;
      report.remedy = "see the other ranks' logs: a process or its network is gone";
      break;
    case NcclResult::system_error:  // a socket that was closed, most often; the membership finds out whose
      report.code = ErrorCode::peer_lost;
      report.remedy =
          "look at NCCL_SOCKET_IFNAME, the network between the hosts, and the limits of open files and locked memory";
      break;
    case NcclResult::unhandled_cuda_error: {
      const bool full = detail.find("out of memory") != std::string::npos;
      report.code = full ? ErrorCode::unavailable : ErrorCode::device_lost;
      report.remedy =
          full ? "the device's memory is full: lower batch_size, or shard the model (--strategy fsdp)"
               : "look at nvidia-smi and dmesg (Xid), and set NCCL_DEBUG=WARN: the device or its driver has failed";
      break;
    }
    case NcclResult::invalid_argument:
    case NcclResult::invalid_usage:
      report.code = ErrorCode::internal;
      report.remedy = "set NCCL_DEBUG=WARN to see which argument";
      break;
    default:
      report.code = ErrorCode::internal;
      report.remedy =
          "set NCCL_DEBUG=INFO to see what came before, and check that the process has only one NCCL library";
  }
  return report;
}

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace troupe
