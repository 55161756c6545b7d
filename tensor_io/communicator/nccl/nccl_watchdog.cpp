#include "tensor_io/communicator/nccl/nccl_watchdog.hpp"

#include <utility>

#include "tensor_io/memory/failure_report.hpp"

namespace troupe {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{10};

}  // namespace

NcclFlights::NcclFlights(Options options) : options_(std::move(options)) {
  if (options_.own_thread) thread_ = std::thread([this] { watch(); });
}

NcclFlights::~NcclFlights() { stop(); }

void NcclFlights::stop() noexcept {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NcclFlights::add(const CollectiveRecord& record, const DeviceStream& stream,
                      const std::vector<at::Tensor>& tensors, const DeviceStream* user) {
  std::vector<c10::Storage> memory, over;  // `over` is dropped outside of the lock
  for (const auto& tensor : tensors) memory.push_back(tensor.storage());
  std::lock_guard lock(mutex_);
  over.swap(over_);
  if (spare_.empty()) spare_.emplace_back(options_.device);
  auto event = std::move(spare_.back());
  spare_.pop_back();
  event.record(stream);
  if (user != nullptr) user->wait(event);
  flights_.push_back({record, std::move(event), options_.now(), std::move(memory)});
  if (flights_.size() == 1) changed_.notify_all();
}

void NcclFlights::look() {
  std::optional<ErrorReport> failure;
  {
    std::lock_guard lock(mutex_);
    if (failed_) return;
    try {
      while (!flights_.empty() && flights_.front().end.done()) {
        auto& first = flights_.front();
        for (auto& memory : first.memory) over_.push_back(std::move(memory));
        spare_.push_back(std::move(first.end));
        flights_.pop_front();
      }
    } catch (const std::exception& error) {
      failure = failure_report(error, options_.device, {.code = ErrorCode::internal});
      failure->operation = flights_.front().record.describe();
    }
    if (!failure && options_.background_failure) failure = options_.background_failure();
    if (!failure && !flights_.empty() && options_.now() - flights_.front().launched > options_.timeout) {
      failure = ErrorReport{
          .code = ErrorCode::timeout,
          .operation = flights_.front().record.describe(),
          .cause = "not finished on the device " + std::to_string(options_.timeout.count()) + " ms after its launch",
          .remedy = "a rank did not launch it, or died in it; raise collective_timeout if ranks are that far apart"};
    }
    if (failure) failed_ = true;
  }
  if (failure) options_.fail(*failure);
}

std::size_t NcclFlights::count() const {
  std::lock_guard lock(mutex_);
  return flights_.size();
}

void NcclFlights::give_up() {
  std::lock_guard lock(mutex_);
  failed_ = true;
  changed_.notify_all();
}

void NcclFlights::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (flights_.empty() || failed_) {
      changed_.wait(lock, [this] { return stopping_ || (!flights_.empty() && !failed_); });
    } else {
      changed_.wait_for(lock, kBetweenLooks, [this] { return stopping_; });
    }
    if (stopping_) return;
    lock.unlock();
    look();
    lock.lock();
  }
}

}  // namespace troupe
