#include "tensor_io/communicator/nccl/nccl_communicator.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <utility>

#include "tensor_io/communicator/group_setup.hpp"
#include "tensor_io/communicator/nccl/nccl_types.hpp"
#include "tensor_io/device/accelerator.hpp"
#include "tensor_io/device/device_graph.hpp"
#include "tensor_io/memory/memory_shortage.hpp"

namespace troupe {
namespace {

std::size_t numel_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }
std::byte* start_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

std::shared_ptr<NcclApi> api_of(const CommunicatorOptions& options) {
  if (options.nccl) return options.nccl;
  if (auto* cuda = accelerator()) return cuda->nccl();
  throw Error(ErrorCode::unavailable, "communicator '" + options.name + "'",
              "this program was built without CUDA and NCCL",
              "build it with ./dev build cuda, or leave backend and device out");
}

// The communicator beside it for tensors of the CPU; none where all are, in a test that has an NCCL of its own.
std::unique_ptr<Communicator> make_host(CommunicatorOptions options) {
  if (options.device.is_cpu()) return nullptr;
  options.device = at::kCPU;
  options.backend = "auto";
  options.name += "/host";
  return make_communicator(std::move(options));
}

// The first call that fails, or the last result.
NcclResult for_each_rank(int world_size, const std::function<NcclResult(int rank)>& call) {
  auto result = NcclResult::success;
  for (int r = 0; r < world_size; ++r) {
    result = call(r);
    if (!is_launched(result)) return result;
  }
  return result;
}

}  // namespace

// Memory from NCCL and its window. The tensor that lies in it may outlive the communicator; then the window is gone
// already.
struct NcclCommunicator::Window {
  std::shared_ptr<NcclApi> api;
  std::weak_ptr<NcclLife> life;
  c10::Device device = at::kCPU;
  void* data = nullptr;
  void* handle = nullptr;

  ~Window() {
    try {
      // Whoever drops the tensor last may be a thread that never chose a device: NCCL, and the wait before memory goes,
      // take the current.
      const CurrentStream place(DeviceStream::current(device));
      give_back();
    } catch (const c10::Error&) {  // the device has failed: what it has goes with the process
    }
  }

 private:
  void give_back() {
    if (const auto living = life.lock(); living && handle != nullptr && living->ready()) {
      try {
        living->manage("end of a window",
                       [&](NcclApi& calls, NcclComm comm) { return calls.remove_window(comm, handle); });
      } catch (...) {  // aborted meanwhile: NCCL has dropped its windows
      }
    }
    api->free_memory(data);
  }
};

NcclCommunicator::NcclCommunicator(CommunicatorOptions given, std::unique_ptr<Communicator> host)
    : NcclCommunicator(std::move(given), std::move(host), nullptr) {
  life_ = std::make_shared<NcclLife>(
      NcclLifeOptions{.api = api_of(options()), .name = options().name, .timeout = options().timeout});
  const CurrentStream place(stream_);  // NCCL takes the current device
  const auto deadline = std::chrono::steady_clock::now() + options().timeout;
  std::string id;
  if (rank() == 0) {
    if (const auto result = life_->api().unique_id(&id); result != NcclResult::success) {
      throw Error(nccl_failure(result, "unique id", life_->api().last_error(nullptr)));
    }
  }
  if (world_size() > 1) id = all_gather_at_rendezvous(options(), "nccl", id, deadline)[0];
  life_->connect(world_size(), rank(), id);
  watch();
}

NcclCommunicator::NcclCommunicator(CommunicatorOptions given, std::unique_ptr<Communicator> host,
                                   std::unique_ptr<NcclLife> life)
    : Communicator(std::move(given)),
      host_(std::move(host)),
      stream_(DeviceStream::from_pool(options().device, true)),
      before_(options().device),
      life_(std::move(life)) {
  if (life_) watch();
}

void NcclCommunicator::watch() {
  NcclFlights::Options flights;
  flights.device = options().device;
  flights.timeout = options().timeout;
  flights.background_failure = [life = life_.get()] { return life->background_failure(); };
  flights.fail = [this](const ErrorReport& report) { fail(report); };
  flights_ = std::make_unique<NcclFlights>(std::move(flights));
}

NcclCommunicator::~NcclCommunicator() {
  if (flights_) flights_->stop();  // its thread calls this object, and reads the pointer: no reset()
}

Communicator& NcclCommunicator::host(const CollectiveRecord& record) {
  host_->ledger().set_step(record.step);
  return *host_;
}

void NcclCommunicator::launch(const CollectiveRecord& record, const std::vector<at::Tensor>& tensors,
                              const NcclLife::Calls& calls, const std::function<void()>& then) {
  const auto current = DeviceStream::current(options().device);
  if (graph_under_way(options().device) != nullptr) {
    throw Error(ErrorCode::usage, "cuda_graphs",
                record.describe() + " is called within forward or backward, and a graph can't hold it",
                "leave cuda_graphs out");
  }
  auto arrived = options().timed ? waits_.arrive(current) : nullptr;
  before_.record(current);
  stream_.wait(before_);
  {
    const CurrentStream place(stream_);
    try {
      life_->launch(record.describe(), calls);
    } catch (...) {                      // NCCL may be at work there until it is aborted
      std::vector<c10::Storage> memory;  // no tensors: their graphs may hold the communicator
      memory.reserve(tensors.size());
      for (const auto& tensor : tensors) memory.push_back(tensor.storage());
      life_->keep(std::make_shared<std::vector<c10::Storage>>(std::move(memory)));
      throw;
    }
    if (then) then();
  }
  flights_->add(record, stream_, tensors, &current);
  waits_.leave(std::move(arrived), current);
}

// NVLS and symmetric kernels know sums alone, so an average is a sum that is divided afterwards: `op` becomes that, and
// what is returned divides. The sum of f16 could be too large: NCCL averages it.
std::function<void()> NcclCommunicator::divide_sum(ReduceOp& op, const at::Tensor& sum) const {
  if (op != ReduceOp::avg || sum.scalar_type() == at::kHalf) return {};
  op = ReduceOp::sum;
  return [sum, ranks = world_size()] {
    const c10::AutoGradMode no_grad(false);
    sum.div_(ranks);
  };
}

void NcclCommunicator::do_all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveRecord& record) {
  if (on_host(tensor)) return host(record).all_reduce(tensor, op, record.label.data());
  if (tensor.numel() == 0) return;
  const auto average = divide_sum(op, tensor);
  launch(
      record, {tensor},
      [&](NcclApi& api, NcclComm comm) {
        return api.all_reduce(tensor.data_ptr(), tensor.data_ptr(), numel_of(tensor), nccl_type(tensor.scalar_type()),
                              nccl_op(op, tensor.scalar_type()), comm, stream_.native());
      },
      average);
}

void NcclCommunicator::do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                         const CollectiveRecord& record) {
  if (on_host(input)) return host(record).reduce_scatter(output, input, op, record.label.data());
  if (output.numel() == 0) return;
  const auto average = divide_sum(op, output);
  launch(
      record, {output, input},
      [&](NcclApi& api, NcclComm comm) {
        return api.reduce_scatter(input.data_ptr(), output.data_ptr(), numel_of(output), nccl_type(input.scalar_type()),
                                  nccl_op(op, input.scalar_type()), comm, stream_.native());
      },
      average);
}

void NcclCommunicator::do_all_gather(const at::Tensor& output, const at::Tensor& input,
                                     const CollectiveRecord& record) {
  if (on_host(input)) return host(record).all_gather(output, input, record.label.data());
  if (input.numel() == 0) return;
  launch(record, {output, input}, [&](NcclApi& api, NcclComm comm) {
    return api.all_gather(input.data_ptr(), output.data_ptr(), numel_of(input), nccl_type(input.scalar_type()), comm,
                          stream_.native());
  });
}

void NcclCommunicator::do_broadcast(const at::Tensor& tensor, int root, const CollectiveRecord& record) {
  if (on_host(tensor)) return host(record).broadcast(tensor, root, record.label.data());
  if (tensor.numel() == 0) return;
  launch(record, {tensor}, [&](NcclApi& api, NcclComm comm) {
    return api.broadcast(tensor.data_ptr(), tensor.data_ptr(), numel_of(tensor), nccl_type(tensor.scalar_type()), root,
                         comm, stream_.native());
  });
}

void NcclCommunicator::do_reduce(const at::Tensor& tensor, int root, ReduceOp op, const CollectiveRecord& record) {
  if (on_host(tensor)) return host(record).reduce(tensor, root, op, record.label.data());
  if (tensor.numel() == 0) return;
  launch(record, {tensor}, [&](NcclApi& api, NcclComm comm) {
    return api.reduce(tensor.data_ptr(), rank() == root ? tensor.data_ptr() : nullptr, numel_of(tensor),
                      nccl_type(tensor.scalar_type()), nccl_op(op, tensor.scalar_type()), root, comm, stream_.native());
  });
}

// The four that follow are groups of sends and receives, which NCCL runs at once; a rank's part for itself too.
void NcclCommunicator::do_gather(const at::Tensor& output, const at::Tensor& input, int root,
                                 const CollectiveRecord& record) {
  if (on_host(input)) return host(record).gather(output, input, root, record.label.data());
  if (input.numel() == 0) return;
  const auto type = nccl_type(input.scalar_type());
  std::vector<at::Tensor> used = {input};
  if (rank() == root) used.push_back(output);
  launch(record, used, [&](NcclApi& api, NcclComm comm) {
    if (rank() == root) {
      const auto received = for_each_rank(world_size(), [&](int from) {
        auto* slice = start_of(output) + static_cast<std::size_t>(from) * input.nbytes();
        if (from == root && slice == start_of(input)) return NcclResult::success;
        return api.recv(slice, numel_of(input), type, from, comm, stream_.native());
      });
      if (!is_launched(received)) return received;
      if (start_of(output) + static_cast<std::size_t>(root) * input.nbytes() == start_of(input)) return received;
    }
    return api.send(input.data_ptr(), numel_of(input), type, root, comm, stream_.native());
  });
}

void NcclCommunicator::do_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                                  const CollectiveRecord& record) {
  if (on_host(output)) return host(record).scatter(output, input, root, record.label.data());
  if (output.numel() == 0) return;
  const auto type = nccl_type(output.scalar_type());
  std::vector<at::Tensor> used = {output};
  if (rank() == root) used.push_back(input);
  launch(record, used, [&](NcclApi& api, NcclComm comm) {
    if (rank() == root) {
      const auto sent = for_each_rank(world_size(), [&](int to) {
        auto* slice = start_of(input) + static_cast<std::size_t>(to) * output.nbytes();
        if (to == root && slice == start_of(output)) return NcclResult::success;
        return api.send(slice, numel_of(output), type, to, comm, stream_.native());
      });
      if (!is_launched(sent)) return sent;
      if (start_of(input) + static_cast<std::size_t>(root) * output.nbytes() == start_of(output)) return sent;
    }
    return api.recv(output.data_ptr(), numel_of(output), type, root, comm, stream_.native());
  });
}

void NcclCommunicator::do_all_to_all(const at::Tensor& output, const at::Tensor& input,
                                     const CollectiveRecord& record) {
  if (on_host(input)) return host(record).all_to_all(output, input, record.label.data());
  if (input.numel() == 0) return;
  const auto type = nccl_type(input.scalar_type());
  const auto count = numel_of(input) / static_cast<std::size_t>(world_size());
  const auto bytes = input.nbytes() / static_cast<std::size_t>(world_size());
  launch(record, {output, input}, [&](NcclApi& api, NcclComm comm) {
    return for_each_rank(world_size(), [&](int other) {
      const auto at = static_cast<std::size_t>(other) * bytes;
      const auto sent = api.send(start_of(input) + at, count, type, other, comm, stream_.native());
      if (!is_launched(sent)) return sent;
      return api.recv(start_of(output) + at, count, type, other, comm, stream_.native());
    });
  });
}

void NcclCommunicator::do_send(const at::Tensor& tensor, int destination, const CollectiveRecord& record) {
  if (on_host(tensor)) return host(record).send(tensor, destination, record.label.data());
  if (tensor.numel() == 0) return;
  launch(record, {tensor}, [&](NcclApi& api, NcclComm comm) {
    return api.send(tensor.data_ptr(), numel_of(tensor), nccl_type(tensor.scalar_type()), destination, comm,
                    stream_.native());
  });
}

void NcclCommunicator::do_recv(const at::Tensor& tensor, int source, const CollectiveRecord& record) {
  if (on_host(tensor)) return host(record).recv(tensor, source, record.label.data());
  if (tensor.numel() == 0) return;
  launch(record, {tensor}, [&](NcclApi& api, NcclComm comm) {
    return api.recv(tensor.data_ptr(), numel_of(tensor), nccl_type(tensor.scalar_type()), source, comm,
                    stream_.native());
  });
}

void NcclCommunicator::do_barrier(const CollectiveRecord& record) {
  if (host_) return host(record).barrier(record.label.data());
  if (!barrier_.defined()) barrier_ = at::zeros({1}, at::TensorOptions().dtype(at::kByte).device(options().device));
  do_all_reduce(barrier_, ReduceOp::max, record);
}

at::Tensor NcclCommunicator::do_allocate(std::int64_t bytes, const CollectiveRecord&) {
  const auto on_device = at::TensorOptions().dtype(at::kByte).device(options().device);
  if (bytes == 0) return at::zeros({0}, on_device);
  auto window = std::make_shared<Window>();
  window->api = life_->shared_api();
  window->life = life_;
  window->device = options().device;
  {
    const CurrentStream place(stream_);  // NCCL takes the current device
    auto result = life_->api().memory(&window->data, static_cast<std::size_t>(bytes));
    if (result == NcclResult::unhandled_cuda_error) {  // as it says when the rest of the memory is kept by LibTorch
      release_cached_memory(options().device);
      result = life_->api().memory(&window->data, static_cast<std::size_t>(bytes));
    }
    if (result != NcclResult::success) {
      auto report =
          nccl_failure(result, "memory of " + std::to_string(bytes) + " bytes", life_->api().last_error(nullptr));
      report.remedy =
          "look in nvidia-smi whether the device's memory is full; lower batch_size, or shard the model (--strategy "
          "fsdp)";
      throw Error(report);
    }
    life_->manage(
        "window of " + std::to_string(bytes) + " bytes",
        [&](NcclApi& api, NcclComm comm) {
          return api.add_window(comm, window->data, static_cast<std::size_t>(bytes), &window->handle);
        },
        window);
  }
  auto* data = window->data;
  return at::from_blob(
             data, {bytes}, [window = std::move(window)](void*) mutable { window.reset(); }, on_device,
             options().device)
      .zero_();
}

std::unique_ptr<Communicator> NcclCommunicator::do_split(std::optional<CommunicatorOptions> group, int color, int key) {
  const CurrentStream place(stream_);
  auto life = life_->split(color, key, group ? group->name : name());
  if (!group) return nullptr;
  auto host = make_host(*group);
  return std::unique_ptr<Communicator>(new NcclCommunicator(std::move(*group), std::move(host), std::move(life)));
}

void NcclCommunicator::do_abort(const ErrorReport& reason) noexcept {
  if (life_) life_->abort();
  if (flights_) flights_->give_up();
  if (host_) host_->abort(reason);
}

std::unique_ptr<Communicator> make_nccl_communicator(CommunicatorOptions options) {
  api_of(options);
  auto host = make_host(options);
  return std::make_unique<NcclCommunicator>(std::move(options), std::move(host));
}

}  // namespace troupe
