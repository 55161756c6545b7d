#include "tensor_io/communicator/gloo/gloo_mesh.hpp"

#include <c10/util/ScopeExit.h>
#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/communicator/communicator_errors.hpp"
#include "tensor_io/communicator/gloo/peer_links.hpp"
#include "tensor_io/communicator/group_setup.hpp"

namespace troupe {
namespace {

namespace tcp = gloo::transport::tcp;

constexpr std::uint64_t kFarewellSlot = 1;  // operations use even ones
constexpr auto kForever = std::chrono::hours(24 * 365);

/// Gloo's connection, with two faults of its event loop mended, and made by us: Gloo takes the first connection that
/// comes to its port for the peer's.
class MeshPair final : public tcp::Pair {
 public:
  MeshPair(tcp::Context* context, tcp::Device* device, int rank, std::chrono::milliseconds timeout)
      : tcp::Pair(context, device, rank, timeout) {
    std::lock_guard lock(m_);
    if (state_ != LISTENING) throw gloo::IoException("an unknown process connected to a port before it was published");
    device_->registerDescriptor(fd_, 0, this);  // the loop leaves it alone, and Gloo finds it there when it closes it
  }

  int listener() const { return fd_; }
  void adopt(int fd) {
    std::lock_guard lock(m_);
    device_->unregisterDescriptor(fd_, this);
    ::close(fd_);
    fd_ = fd;
    handleConnected();
  }

  void handleEvents(int events) override {
    // A thread that sends holds the lock, and the answer to what it sends wakes the loop. Gloo's loop then polls until
    // it gets the lock: on the same core that keeps the sender from giving it back until the kernel's next tick, 4 ms
    // later.
    if (!m_.try_lock()) {
      std::this_thread::sleep_for(std::chrono::microseconds(5));
      return;
    }
    const bool ours = state_ == LISTENING;
    m_.unlock();
    if (ours) return;
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
  all_gather_at_rendezvous(options, "gloo", {}, deadline);  // names the ranks that do not come
  const auto key = [&](int from, int to) {
    return options.name + "/gloo/" + std::to_string(from) + "-" + std::to_string(to);
  };
  const auto pair = [&](int r) -> MeshPair& { return dynamic_cast<MeshPair&>(*context_->getPair(r)); };
  std::vector<PeerLink> links;
  try {
    context_ = std::make_shared<MeshContext>(device_at(options.interface_address), options.rank, options.world_size);
    context_->setTimeout(options.timeout);
    for (int r = 0; r < options.world_size; ++r) {
      if (r == options.rank) continue;
      auto& link = links.emplace_back();
      link.rank = r;
      link.dials = r < options.rank;
      link.mine = random_link_token();
      const auto bytes = context_->createPair(r)->address().bytes();
      link.listener = pair(r).listener();
      options.rendezvous->put(key(options.rank, r), std::string(bytes.begin(), bytes.end()) +
                                                        std::string(link.mine.begin(), link.mine.end()));
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // Gloo's have no base of their own
    const int spare = ::dup(0);
    const bool exhausted = spare < 0 && (errno == EMFILE || errno == ENFILE);
    if (spare >= 0) ::close(spare);
    throw Error(ErrorCode::unavailable, operation,
                (exhausted ? std::string(std::strerror(EMFILE)) + ": " : std::string()) + error.what(),
                "check that this is an address of this host, and that open files (ulimit -n) and ports "
                "(net.ipv4.ip_local_port_range) are left");
  }
  for (auto& link : links) {
    const auto published = options.rendezvous->get(key(link.rank, options.rank), time_until(deadline));
    if (published.size() < sizeof link.address + link.theirs.size())
      throw Error(ErrorCode::mismatch, operation, name_ranks(options, {link.rank}) + " published no address");
    std::memcpy(&link.address, published.data(), sizeof link.address);  // Gloo's Address begins with it
    std::copy_n(published.end() - static_cast<std::ptrdiff_t>(link.theirs.size()), link.theirs.size(),
                link.theirs.begin());
  }
  fault_point("connect", 0);
  connect_links(links, options, operation, deadline);
  for (const auto& link : links) pair(link.rank).adopt(link.fd);
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
  const auto forget = c10::make_scope_exit([this] {
    std::lock_guard lock(mutex_);
    waited_ = nullptr;
  });
  if (!wait_for_it(*transfer)) throw gloo::IoException("a connection ended");
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
