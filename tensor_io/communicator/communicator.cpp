#include "tensor_io/communicator/communicator.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tensor_io/base/trace.hpp"
#include "tensor_io/communicator/communicator_arguments.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/memory/failure_report.hpp"

namespace troupe {
namespace {

CollectiveRecord record_of(CollectiveKind kind, std::string_view label, const at::Tensor* tensor = nullptr,
                           ReduceOp op = ReduceOp{}, int peer = -1) {
  CollectiveRecord record;
  record.kind = kind;
  record.reduce_op = static_cast<std::uint8_t>(op);
  record.peer = peer;
  if (tensor != nullptr) {
    record.dtype = static_cast<std::int8_t>(tensor->scalar_type());
    record.numel = tensor->numel();
  }
  const std::size_t length = std::min(label.size(), record.label.size() - 1);
  std::copy_n(label.data(), length, record.label.data());
  return record;
}

// `all_reduce (bucket 3)`.
std::string range_text(const CollectiveRecord& record) {
  std::string text(to_string(record.kind));
  return record.label[0] == '\0' ? text : text + " (" + record.label.data() + ")";
}

}  // namespace

Communicator::Communicator(CommunicatorOptions options)
    : options_(std::move(options)), ledger_(std::make_shared<CollectiveLedger>()) {}

std::optional<ErrorReport> Communicator::broken() const {
  if (!is_broken_.load(std::memory_order_acquire)) return std::nullopt;
  std::lock_guard lock(broken_mutex_);
  return broken_;
}

bool Communicator::break_with(const ErrorReport& reason) noexcept {
  std::lock_guard lock(broken_mutex_);
  if (broken_) return false;
  broken_ = reason;
  is_broken_.store(true, std::memory_order_release);
  return true;
}

void Communicator::throw_if_broken() const {
  if (auto reason = broken()) throw Error(complete(*reason, nullptr));
}

void Communicator::fail(ErrorReport reason) noexcept {
  if (reason.rank < 0) reason.rank = member(rank());
  if (reason.step < 0) reason.step = ledger_->step();
  if (break_with(reason)) do_abort(reason);
}

// Without a record: the operation is what it says itself.
ErrorReport Communicator::complete(ErrorReport report, const CollectiveRecord* record) const {
  if (report.rank < 0) report.rank = member(rank());
  if (report.step < 0) report.step = ledger_->step();
  if (report.operation.empty() && record != nullptr) report.operation = record->describe();
  return report;
}

void Communicator::abort(const ErrorReport& reason) noexcept {
  const ErrorReport freed{ErrorCode::aborted, -1, {}, -1, {}, reason.to_string(), {}};
  if (break_with(freed)) do_abort(freed);
}

// The one way into a back end: ledger, then the work, then, if that fails, the first reason for every rank and every
// later call.
template <class Work>
void Communicator::perform(CollectiveRecord record, Work&& work) {
  if (auto reason = broken()) throw Error(complete(*reason, &record));
  record = ledger_->begin(record);
  OpenRange range;
  if (spans_are_ranges()) range.begin(range_text(record));
  ErrorReport failure;
  try {
    work(record);
    ledger_->finish();
    return;
  } catch (const std::exception& error) {
    failure = failure_report(error, options_.device, {.code = ErrorCode::internal});
    if (failure.code == ErrorCode::fenced) throw;  // the others go on without it, and see that it has left
  }
  failure = complete(failure, &record);
  if (break_with(failure)) do_abort(failure);
  throw Error(complete(*broken(), &record));
}

void Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view label) {
  check_tensor("all_reduce", "tensor", tensor, options_.device);
  check_reduction("all_reduce", op, tensor.scalar_type());
  perform(record_of(CollectiveKind::all_reduce, label, &tensor, op),
          [&](const auto& record) { do_all_reduce(tensor, op, record); });
}

void Communicator::all_reduce_update(const at::Tensor& gradients, const ReducedUpdate& update, std::string_view label) {
  check_tensor("all_reduce_update", "gradients", gradients, options_.device);
  check_update("all_reduce_update", gradients, update);
  perform(record_of(CollectiveKind::all_reduce, label, &gradients, ReduceOp::avg),
          [&](const auto& record) { do_all_reduce_update(gradients, update, record); });
}

void Communicator::do_all_reduce_update(const at::Tensor& gradients, const ReducedUpdate& update,
                                        const CollectiveRecord& record) {
  do_all_reduce(gradients, ReduceOp::avg, record);
  apply_update(update, {gradients.const_data_ptr<float>()}, 1, copies_here(update.next), 0, gradients.numel());
}

void Communicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                  std::string_view label) {
  check_tensor("reduce_scatter", "output", output, options_.device);
  check_tensor("reduce_scatter", "input", input, options_.device);
  check_pair("reduce_scatter", input, "input", output, "output", world_size(), rank());
  check_reduction("reduce_scatter", op, input.scalar_type());
  perform(record_of(CollectiveKind::reduce_scatter, label, &input, op),
          [&](const auto& record) { do_reduce_scatter(output, input, op, record); });
}

void Communicator::all_gather(const at::Tensor& output, const at::Tensor& input, std::string_view label) {
  check_tensor("all_gather", "output", output, options_.device);
  check_tensor("all_gather", "input", input, options_.device);
  check_pair("all_gather", output, "output", input, "input", world_size(), rank());
  perform(record_of(CollectiveKind::all_gather, label, &input),
          [&](const auto& record) { do_all_gather(output, input, record); });
}

void Communicator::broadcast(const at::Tensor& tensor, int root, std::string_view label) {
  check_tensor("broadcast", "tensor", tensor, options_.device);
  check_rank("broadcast", "root", root, world_size());
  perform(record_of(CollectiveKind::broadcast, label, &tensor, {}, root),
          [&](const auto& record) { do_broadcast(tensor, root, record); });
}

void Communicator::reduce(const at::Tensor& tensor, int root, ReduceOp op, std::string_view label) {
  check_tensor("reduce", "tensor", tensor, options_.device);
  check_rank("reduce", "root", root, world_size());
  check_reduction("reduce", op, tensor.scalar_type());
  perform(record_of(CollectiveKind::reduce, label, &tensor, op, root),
          [&](const auto& record) { do_reduce(tensor, root, op, record); });
}

void Communicator::gather(const at::Tensor& output, const at::Tensor& input, int root, std::string_view label) {
  check_tensor("gather", "input", input, options_.device);
  check_rank("gather", "root", root, world_size());
  if (rank() == root) {
    check_tensor("gather", "output", output, options_.device);
    check_pair("gather", output, "output", input, "input", world_size(), rank());
  }
  perform(record_of(CollectiveKind::gather, label, &input, {}, root),
          [&](const auto& record) { do_gather(output, input, root, record); });
}

void Communicator::scatter(const at::Tensor& output, const at::Tensor& input, int root, std::string_view label) {
  check_tensor("scatter", "output", output, options_.device);
  check_rank("scatter", "root", root, world_size());
  if (rank() == root) {
    check_tensor("scatter", "input", input, options_.device);
    check_pair("scatter", input, "input", output, "output", world_size(), rank());
  }
  perform(record_of(CollectiveKind::scatter, label, &output, {}, root),
          [&](const auto& record) { do_scatter(output, input, root, record); });
}

void Communicator::all_to_all(const at::Tensor& output, const at::Tensor& input, std::string_view label) {
  check_tensor("all_to_all", "output", output, options_.device);
  check_tensor("all_to_all", "input", input, options_.device);
  check_pair("all_to_all", output, "output", input, "input", 1, -1);
  if (input.numel() % world_size() != 0) {
    throw Error(ErrorCode::usage, "all_to_all",
                std::to_string(input.numel()) + " elements cannot be cut into " + std::to_string(world_size()) +
                    " equal slices");
  }
  perform(record_of(CollectiveKind::all_to_all, label, &input),
          [&](const auto& record) { do_all_to_all(output, input, record); });
}

void Communicator::send(const at::Tensor& tensor, int destination, std::string_view label) {
  check_tensor("send", "tensor", tensor, options_.device);
  check_rank("send", "destination", destination, world_size());
  if (destination == rank()) throw Error(ErrorCode::usage, "send", "a rank cannot send to itself");
  perform(record_of(CollectiveKind::send, label, &tensor, {}, destination),
          [&](const auto& record) { do_send(tensor, destination, record); });
}

void Communicator::recv(const at::Tensor& tensor, int source, std::string_view label) {
  check_tensor("recv", "tensor", tensor, options_.device);
  check_rank("recv", "source", source, world_size());
  if (source == rank()) throw Error(ErrorCode::usage, "recv", "a rank cannot receive from itself");
  perform(record_of(CollectiveKind::recv, label, &tensor, {}, source),
          [&](const auto& record) { do_recv(tensor, source, record); });
}

void Communicator::barrier(std::string_view label) {
  perform(record_of(CollectiveKind::barrier, label), [&](const auto& record) { do_barrier(record); });
}

void Communicator::wait_on_host(std::string_view label) {
  if (device().is_cpu()) return;
  DeviceEvent end(options().device);
  end.record(DeviceStream::current(options().device));
  wait_on_host(end, label);
}

void Communicator::wait_on_host(const DeviceEvent& event, std::string_view label) {
  TracePhase waiting("wait for the device");
  const auto deadline = waiting.began() + options().timeout;
  host_wait(event, [&] {
    throw_if_broken();
    if (std::chrono::steady_clock::now() > deadline) {
      throw Error(
          ErrorCode::timeout, "wait for the device (" + std::string(label) + ")",
          "the device did not finish the step's work within " + std::to_string(options().timeout.count()) + " ms",
          "raise collective_timeout if a step takes that long");
    }
  });
  waiting.end();
  throw_if_broken();
}

at::Tensor Communicator::allocate(std::int64_t numel, at::ScalarType dtype) {
  if (numel < 0) throw Error(ErrorCode::usage, "allocate", std::to_string(numel) + " elements");
  element_of(dtype);
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype));
  auto record = record_of(CollectiveKind::allocate, {}, &tensor);
  record.numel = numel;
  perform(record, [&](const auto& begun) {
    const auto bytes = numel * static_cast<std::int64_t>(tensor.element_size());
    tensor = do_allocate(bytes, begun).view(dtype);
  });
  return tensor;
}

at::Tensor Communicator::allocate_shared(std::int64_t numel, at::ScalarType dtype) {
  if (numel < 0) throw Error(ErrorCode::usage, "allocate_shared", std::to_string(numel) + " elements");
  element_of(dtype);
  auto record = record_of(CollectiveKind::allocate, "shared");
  record.dtype = static_cast<std::int8_t>(dtype);
  record.numel = numel;
  at::Tensor tensor;
  perform(record, [&](const auto& begun) {
    const auto memory = do_allocate_shared(numel * static_cast<std::int64_t>(c10::elementSize(dtype)), begun);
    if (memory.defined()) tensor = memory.view(dtype);
  });
  return tensor;
}

at::Tensor Communicator::do_allocate_shared(std::int64_t, const CollectiveRecord&) { return {}; }

at::Tensor Communicator::do_allocate(std::int64_t bytes, const CollectiveRecord&) {
  return at::zeros(
      {bytes}, at::TensorOptions().dtype(at::kByte).device(options_.device));  // c10's CPU allocator aligns to 64 bytes
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  const std::array<std::int64_t, 2> own = {color, key};
  std::vector<std::int64_t> all(own.size() * world_size());
  const auto input = at::from_blob(const_cast<std::int64_t*>(own.data()), {2}, at::kLong);
  const auto output = at::from_blob(all.data(), {static_cast<std::int64_t>(all.size())}, at::kLong);
  perform(record_of(CollectiveKind::split, {}, &input),
          [&](const auto& record) { do_all_gather(output, input, record); });
  const int number = splits_++;
  if (color < 0) return do_split(std::nullopt, color, key);

  std::vector<int> ranks;
  for (int r = 0; r < world_size(); ++r) {
    if (all[2 * r] == color) ranks.push_back(r);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return all[2 * a + 1] < all[2 * b + 1]; });
  CommunicatorOptions group = options_;
  group.timed = false;  // nobody takes its times
  group.name += "/split" + std::to_string(number) + "." + std::to_string(color);
  group.world_size = static_cast<int>(ranks.size());
  group.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  group.members.clear();
  for (const int r : ranks) group.members.push_back(member(r));
  return do_split(std::move(group), color, key);
}

std::unique_ptr<Communicator> Communicator::do_split(std::optional<CommunicatorOptions> group, int, int) {
  return group ? make_communicator(std::move(*group)) : nullptr;
}

}  // namespace troupe
