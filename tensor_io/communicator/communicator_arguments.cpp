#include "tensor_io/communicator/communicator_arguments.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "tensor_io/communicator/communicator_registry.hpp"

namespace troupe {
namespace {

[[noreturn]] void refuse(std::string_view operation, std::string cause, std::string remedy = {}) {
  throw Error(ErrorCode::usage, std::string(operation), std::move(cause), std::move(remedy));
}

std::string quoted(std::string_view which) { return "`" + std::string(which) + "`"; }

std::optional<Element> known_element(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return Element::f32;
    case at::kDouble: return Element::f64;
    case at::kHalf: return Element::f16;
    case at::kBFloat16: return Element::bf16;
    case at::kInt: return Element::i32;
    case at::kLong: return Element::i64;
    case at::kByte: return Element::u8;
    case at::kBool: return Element::boolean;
    default: return std::nullopt;
  }
}

// avg is a sum that is divided afterwards.
Reduction reduction_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::min: return Reduction::min;
    case ReduceOp::max: return Reduction::max;
    case ReduceOp::product: return Reduction::product;
    case ReduceOp::sum:
    case ReduceOp::avg: break;
  }
  return Reduction::sum;
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* of_a = static_cast<const char*>(a.const_data_ptr());
  const auto* of_b = static_cast<const char*>(b.const_data_ptr());
  return of_a < of_b + b.nbytes() && of_b < of_a + a.nbytes();
}

}  // namespace

std::string_view to_string(ReduceOp op) noexcept {
  static constexpr std::array<std::string_view, 6> names = {"none", "sum", "avg", "min", "max", "product"};
  const auto index = static_cast<std::size_t>(op);
  return index < names.size() ? names[index] : "unknown";
}

void check_tensor(std::string_view operation, std::string_view which, const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined()) refuse(operation, quoted(which) + " is undefined");
  if (!tensor.device().is_cpu() && tensor.device() != device) {
    const auto wanted = device.is_cpu() ? std::string("the CPU") : "the CPU and of " + device.str();
    refuse(operation, quoted(which) + " is on " + tensor.device().str() + ", this back end moves tensors of " + wanted,
           "call .cpu() first");
  }
  if (tensor.layout() != at::kStrided) refuse(operation, quoted(which) + " is sparse", "call .to_dense() first");
  const bool is_f8 = tensor.scalar_type() == at::kFloat8_e4m3fn || tensor.scalar_type() == at::kFloat8_e5m2;
  if (!known_element(tensor.scalar_type()) && !(is_f8 && !tensor.device().is_cpu())) {
    refuse(operation, quoted(which) + " is " + c10::toString(tensor.scalar_type()) +
                          ", which is not one of f32, f64, f16, bf16, i32, i64, u8, bool");
  }
  if (!tensor.is_contiguous()) refuse(operation, quoted(which) + " is not contiguous", "call .contiguous() first");
}

void check_update(std::string_view operation, const at::Tensor& gradients, const ReducedUpdate& update) {
  constexpr std::int64_t kLine = 16;
  const auto check = [&](std::string_view which, const at::Tensor& tensor) {
    check_tensor(operation, which, tensor, at::kCPU);
    if (tensor.scalar_type() != at::kFloat || tensor.numel() != gradients.numel() || tensor.numel() % kLine != 0 ||
        reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64 != 0) {
      refuse(operation, quoted(which) + " is not f32, not of the gradients' length, or not made of lines of 64 bytes");
    }
  };
  check("gradients", gradients);
  check("state.parameter", update.state.parameter);
  check("next.parameter", update.next.parameter);
  for (const auto& [which, now, next] : {std::tuple("first", update.state.first, update.next.first),
                                         std::tuple("second", update.state.second, update.next.second)}) {
    if (now.defined() != next.defined()) refuse(operation, quoted(which) + " is in only one of `state` and `next`");
    if (!now.defined()) continue;
    check(which, now);
    check(which, next);
    if (overlap(now, next)) refuse(operation, quoted(which) + " would be updated in place");
  }
  if (overlap(update.state.parameter, update.next.parameter))
    refuse(operation, "`parameter` would be updated in place");
  std::int64_t last = 0;
  for (const auto& run : update.runs) {
    if (run.begin < last || run.end < run.begin || run.end > gradients.numel() || run.begin % kLine != 0 ||
        run.end % kLine != 0)
      refuse(operation, "`runs` are not in order, not within the gradients, or not cut at 64 bytes");
    const bool adamw = run.rule.kind == UpdateRule::Kind::adamw;
    if ((run.rule.has_first && !update.state.first.defined()) || (adamw && !update.state.second.defined()))
      refuse(operation, "`runs` have a rule whose moments are missing");
    last = run.end;
  }
}

void check_pair(std::string_view operation, const at::Tensor& longer, std::string_view longer_name,
                const at::Tensor& shorter, std::string_view shorter_name, int times, int own) {
  if (longer.scalar_type() != shorter.scalar_type()) {
    refuse(operation, quoted(longer_name) + " is " + c10::toString(longer.scalar_type()) + ", " + quoted(shorter_name) +
                          " is " + c10::toString(shorter.scalar_type()));
  }
  if (longer.device() != shorter.device()) {
    refuse(operation,
           quoted(longer_name) + " is on " + longer.device().str() + ", " + quoted(shorter_name) + " on " +
               shorter.device().str(),
           "move one to the other");
  }
  if (longer.numel() != shorter.numel() * times) {
    refuse(operation, quoted(longer_name) + " has " + std::to_string(longer.numel()) + " elements, it must have " +
                          std::to_string(times) + " times the " + std::to_string(shorter.numel()) + " of " +
                          quoted(shorter_name));
  }
  if (shorter.numel() == 0) return;
  const auto* begin = static_cast<const char*>(longer.const_data_ptr());
  const auto* other = static_cast<const char*>(shorter.const_data_ptr());
  const auto nbytes = static_cast<std::int64_t>(shorter.nbytes());
  const bool apart = other + nbytes <= begin || other >= begin + longer.nbytes();
  if (!apart && !(own >= 0 && other == begin + own * nbytes)) {
    refuse(operation, quoted(longer_name) + " and " + quoted(shorter_name) + " overlap",
           own >= 0 ? "use separate memory, or exactly this rank's slice" : "use separate memory");
  }
}

void check_rank(std::string_view operation, std::string_view which, int rank, int world_size) {
  if (rank < 0 || rank >= world_size) {
    refuse(operation, quoted(which) + " is " + std::to_string(rank) + ", the group has ranks 0 to " +
                          std::to_string(world_size - 1));
  }
}

void check_reduction(std::string_view operation, ReduceOp op, at::ScalarType dtype) {
  const auto value = static_cast<int>(op);
  if (value < static_cast<int>(ReduceOp::sum) || value > static_cast<int>(ReduceOp::product))
    refuse(operation, "no such reduce op: " + std::to_string(value));
  if (op == ReduceOp::avg && !at::isFloatingType(dtype)) {
    refuse(operation, std::string("avg of ") + c10::toString(dtype) + " would not be exact",
           "use sum, and divide yourself");
  }
}

void check_options(const CommunicatorOptions& options) {
  const std::string operation = "communicator '" + options.name + "'";
  if (options.world_size < 1) refuse(operation, "world_size is " + std::to_string(options.world_size));
  if (options.rank < 0 || options.rank >= options.world_size) {
    refuse(operation, "rank " + std::to_string(options.rank) + " of " + std::to_string(options.world_size));
  }
  if (options.timeout.count() <= 0)
    refuse(operation, "timeout is " + std::to_string(options.timeout.count()) + " ms", "it must be positive");
  if (options.world_size > 1 && !options.rendezvous) refuse(operation, "several ranks, but no rendezvous");
  if (!options.members.empty() && options.members.size() != static_cast<std::size_t>(options.world_size)) {
    refuse(operation, "names of " + std::to_string(options.members.size()) + " members for " +
                          std::to_string(options.world_size) + " ranks");
  }
  const auto backend = detail::find_communicator(options.backend);
  if (!backend) {
    refuse(operation, "no such back end: '" + options.backend + "'", "use " + name_list(known_communicators(), " or "));
  }
  if (!options.device.is_cpu() && backend->moves == TensorPlace::cpu) {
    refuse(operation,
           "back end " + options.backend + " moves tensors of the CPU, the device is " + options.device.str(),
           "use backend = auto or nccl, or device = cpu");
  }
  if (options.device.is_cpu() && backend->moves == TensorPlace::device && !options.nccl) {
    refuse(operation, "back end " + options.backend + " moves tensors of a GPU, the device is the CPU",
           "use device = cuda, or backend = auto");
  }
}

Element element_of(at::ScalarType dtype) {
  if (const auto element = known_element(dtype)) return *element;
  throw Error(ErrorCode::internal, "element_of", std::string("unchecked dtype ") + c10::toString(dtype));
}

void reduce_all(at::ScalarType dtype, ReduceOp op, int world_size, std::span<const void* const> inputs,
                std::span<void* const> outputs, std::int64_t bytes) {
  ReduceTask task;
  task.element = element_of(dtype);
  task.reduction = reduction_of(op);
  task.divisor = op == ReduceOp::avg ? world_size : 1;
  task.inputs = inputs.data();
  task.input_count = static_cast<int>(inputs.size());
  task.outputs = outputs.data();
  task.output_count = static_cast<int>(outputs.size());
  task.numel = bytes / static_cast<std::int64_t>(c10::elementSize(dtype));
  troupe::reduce(task);
}

}  // namespace troupe
