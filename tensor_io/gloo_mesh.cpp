#include "tensor_io/gloo_mesh.hpp"

#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <mutex>
#include <utility>

#include "tensor_io/communicator_errors.hpp"
#include "tensor_io/group_setup.hpp"

namespace troupe {
namespace {

namespace tcp = gloo::transport::tcp;

constexpr std::uint64_t kFarewellSlot = 1;  // operations use even ones
constexpr auto kForever = std::chrono::hours(24 * 365);

/// Gloo's connection, with two faults of its event loop mended.
class MeshPair final : public tcp::Pair {
 public:
  using tcp::Pair::Pair;

  void handleEvents(int events) override {
    // A thread that sends holds the lock, and the answer to what it sends wakes the loop. Gloo's loop then polls until it gets
    // the lock: on the same core that keeps the sender from giving it back until the kernel's next tick, 4 ms later.
    if (!m_.try_lock()) {
      std::this_thread::sleep_for(std::chrono::microseconds(5));
      return;
    }
    m_.unlock();
    // An exception out of the loop would end the process: a network that goes away while the loop writes.
    try {
      tcp::Pair::handleEvents(events);
    } catch (const std::exception& error) {
      std::lock_guard lock(m_);
      if (state_ != CLOSED) signalException(error.what());
    }
  }
};

class MeshContext final : public tcp::Context {
 public:
  using tcp::Context::Context;

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    pairs_[peer] = std::make_unique<MeshPair>(this, device_.get(), peer, getTimeout());
    return pairs_[peer];
  }
};

/// One event loop for all groups of a process on one interface.
std::shared_ptr<tcp::Device> device_at(const std::string& address) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<tcp::Device>> devices;
  std::lock_guard lock(mutex);
  auto& known = devices[address];
  if (auto device = known.lock()) return device;
  // Gloo writes with writev(2): without this, a peer that dies takes this process along.
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
  tcp::attr attributes(address.c_str());
  auto device = std::dynamic_pointer_cast<tcp::Device>(tcp::CreateDevice(attributes));
  known = device;
  return device;
}

}  // namespace

GlooMesh::GlooMesh(const CommunicatorOptions& options) : timeout_(options.timeout) {
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  const std::string operation = "connecting communicator '" + options.name + "' on " + options.interface_address;
  const auto remaining = [&] {
    return std::max(std::chrono::milliseconds(1),
                    std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()));
  };
  exchange(options, "gloo", {}, deadline);  // names whoever does not come
  const auto key = [&](int from, int to) { return options.name + "/gloo/" + std::to_string(from) + "-" + std::to_string(to); };
  try {
    context_ = std::make_shared<MeshContext>(device_at(options.interface_address), options.rank, options.world_size);
    context_->setTimeout(std::max(std::chrono::milliseconds(1), remaining() / 5));  // it waits five times that for a connection
    for (int r = 0; r < options.world_size; ++r) {
      if (r == options.rank) continue;
      const auto bytes = context_->createPair(r)->address().bytes();
      options.rendezvous->put(key(options.rank, r), std::string(bytes.begin(), bytes.end()));
    }
  } catch (const gloo::Exception& error) {
    throw Error(ErrorCode::unavailable, operation, error.what(), "is this an address of this host?");
  }
  for (int r = 0; r < options.world_size; ++r) {
    if (r == options.rank) continue;
    try {
      const auto address = options.rendezvous->get(key(r, options.rank), remaining());
      context_->getPair(r)->connect({address.begin(), address.end()});
    } catch (const gloo::Exception& error) {
      throw Error(ErrorCode::unavailable, operation, name_ranks(options, {r}) + " cannot be reached: " + error.what(),
                  "do the hosts see each other on these addresses, without a firewall between?");
    }
  }
  context_->setTimeout(options.timeout);
  farewells_.resize(options.world_size);
  farewell_ = context_->createUnboundBuffer(farewells_.data(), farewells_.size());
  for (int r = 0; r < options.world_size; ++r) {
    if (r != options.rank) farewell_->recv(r, kFarewellSlot, r, 1);
  }
  listener_ = std::thread([this] { listen(); });
}

GlooMesh::~GlooMesh() {
  say_farewell();
  farewell_->abortWaitRecv();
  listener_.join();
  // The connections end before the memory that they write to.
  farewell_.reset();
  context_.reset();
}

void GlooMesh::listen() {
  try {
    for (int heard = 1; heard < context_->size; ++heard) {
      if (!farewell_->waitRecv(kForever)) return;  // this rank leaves
    }
  } catch (const std::exception&) {
    free_waiter();
  }
}

void GlooMesh::say_farewell() noexcept {
  char word = 1;
  Transfer out;
  for (int r = 0; r < context_->size; ++r) {
    if (r == context_->rank) continue;
    try {
      out = context_->createUnboundBuffer(&word, 1);
      out->send(r, kFarewellSlot, 0, 1);
      out->waitSend(std::chrono::milliseconds(200));
    } catch (const std::exception&) {  // it left before
    }
  }
}

GlooMesh::Transfer GlooMesh::send(const void* data, std::int64_t bytes, int to, std::uint64_t slot) {
  if (bytes == 0) return nullptr;
  auto buffer = context_->createUnboundBuffer(const_cast<void*>(data), bytes);
  buffer->send(to, slot, 0, bytes);
  return buffer;
}

GlooMesh::Transfer GlooMesh::recv(void* data, std::int64_t bytes, int from, std::uint64_t slot) {
  if (bytes == 0) return nullptr;
  auto buffer = context_->createUnboundBuffer(data, bytes);
  buffer->recv(from, slot, 0, bytes);
  return buffer;
}

template <class Wait>
void GlooMesh::wait(const Transfer& transfer, Wait&& wait_for_it) {
  if (!transfer) return;
  {
    std::lock_guard lock(mutex_);
    if (failed_) throw gloo::IoException("a connection ended");
    waited_ = transfer.get();
  }
  const auto forget = [this] {
    std::lock_guard lock(mutex_);
    waited_ = nullptr;
  };
  bool done = false;
  try {
    done = wait_for_it(*transfer);
  } catch (...) {
    forget();
    throw;
  }
  forget();
  if (!done) throw gloo::IoException("a connection ended");
}

void GlooMesh::wait_sent(const Transfer& transfer) {
  wait(transfer, [this](auto& buffer) { return buffer.waitSend(timeout_); });
}

void GlooMesh::wait_received(const Transfer& transfer) {
  wait(transfer, [this](auto& buffer) { return buffer.waitRecv(timeout_); });
}

void GlooMesh::free_waiter() noexcept {
  std::lock_guard lock(mutex_);
  failed_ = true;
  if (waited_ == nullptr) return;
  waited_->abortWaitSend();
  waited_->abortWaitRecv();
}

void GlooMesh::sever() noexcept {
  free_waiter();
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(severed_, true)) return;
  }
  try {
    for (int r = 0; r < context_->size; ++r) {
      if (r != context_->rank) context_->getPair(r)->close();
    }
  } catch (const std::exception&) {  // whoever is not freed by this is by its deadline
  }
}

}  // namespace troupe
