#include "tensor_io/communicator/nccl/nccl_lifecycle.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tensor_io/communicator/nccl/nccl_types.hpp"

namespace troupe {
namespace {

constexpr std::chrono::milliseconds kPatienceAtEnd{5'000};
constexpr std::chrono::seconds kPatienceWithCalls{1};

}  // namespace

struct NcclLife::Shared {
  std::shared_ptr<NcclApi> api;
  std::mutex turn;   // from a call to its end: NCCL refuses another one meanwhile. The abort does not wait for it
  std::mutex mutex;  // around calls of NCCL, which are short in its non-blocking mode; never held while waiting
  NcclComm comm = nullptr;                  // guarded by mutex
  std::vector<std::shared_ptr<void>> used;  // by calls that failed, until the abort is over; guarded by mutex
  std::atomic<State> state{State::none};
  std::mutex end_mutex;
  std::condition_variable ended;

  void end_by_abort() noexcept {
    NcclComm last = nullptr;
    {
      // A call that hangs in spite of all is what the abort is for. No timed mutex: GCC 12's ThreadSanitizer does not
      // see its lock.
      std::unique_lock lock(mutex, std::try_to_lock);
      const auto deadline = std::chrono::steady_clock::now() + kPatienceWithCalls;
      while (!lock.owns_lock() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        (void)lock.try_lock();
      }
      last = std::exchange(comm, nullptr);
    }
    if (last != nullptr) api->abort(last);
    std::vector<std::shared_ptr<void>> unused;
    if (std::unique_lock lock(mutex, std::try_to_lock); lock.owns_lock()) unused.swap(used);  // else with *this
    unused.clear();
    std::lock_guard lock(end_mutex);
    state = State::ended;
    ended.notify_all();
  }
};

NcclLife::NcclLife(NcclLifeOptions options) : options_(std::move(options)), shared_(std::make_shared<Shared>()) {
  shared_->api = options_.api;
}

NcclLife::NcclLife(NcclLifeOptions options, NcclComm comm) : NcclLife(std::move(options)) {
  shared_->comm = comm;
  shared_->state = State::ready;
}

NcclLife::~NcclLife() {
  if (shared_->state == State::ready) {
    try {
      // Waits for the others to get so far, as far as NCCL needs them; destroy does not block then.
      call("finalize", kPatienceAtEnd, [](NcclApi& api, NcclComm comm) { return api.finalize(comm); });
      std::lock_guard lock(shared_->mutex);
      if (shared_->state == State::ready) {
        options_.api->destroy(std::exchange(shared_->comm, nullptr));
        shared_->state = State::ended;
      }
    } catch (...) {  // it was aborted
    }
  }
  if (shared_->state == State::failed) {
    std::unique_lock lock(shared_->end_mutex);
    shared_->ended.wait_for(lock, kPatienceAtEnd, [&] { return shared_->state == State::ended; });
  }
}

bool NcclLife::ready() const noexcept { return shared_->state == State::ready; }

void NcclLife::abort() noexcept {
  auto state = shared_->state.load();
  for (;;) {
    if (state == State::failed || state == State::ended) return;
    if (shared_->state.compare_exchange_weak(state, State::failed)) break;
  }
  try {
    std::thread([shared = shared_] { shared->end_by_abort(); }).detach();
  } catch (...) {  // no thread to be had
    shared_->end_by_abort();
  }
}

void NcclLife::fail(const ErrorReport& report) {
  abort();
  throw Error(report);
}

// That a call returns success says nothing: ncclCommSplit and ncclCommWindowRegister of 2.28 do, and go on in the
// background. Only the communicator's state says that a call is over.
void NcclLife::settle(const std::string& what, NcclResult result, std::chrono::milliseconds timeout) {
  const auto began = options_.clock.now();
  for (int looks = 0;; ++looks) {
    const auto state = shared_->state.load();
    if (state == State::failed || state == State::ended) {
      throw Error(ErrorCode::aborted, what, "communicator '" + options_.name + "' was aborted");
    }
    if (!is_launched(result)) {
      std::string detail;
      {
        std::lock_guard lock(shared_->mutex);
        detail = options_.api->last_error(shared_->comm);
      }
      fail(nccl_failure(result, what, detail));
    }
    if (looks > 0 && result == NcclResult::success) return;
    if (options_.clock.now() > began + timeout) {
      fail({.code = ErrorCode::timeout,
            .cause = "NCCL " + what + ": not finished after " + std::to_string(timeout.count()) + " ms",
            .remedy = "check that every rank is running and makes the same calls; NCCL_DEBUG=INFO shows how far each "
                      "one got"});
    }
    if (looks > 0) options_.clock.pause(began);
    std::lock_guard lock(shared_->mutex);
    if (shared_->state == State::failed || shared_->state == State::ended) continue;
    NcclResult background = NcclResult::success;
    const auto asked =
        shared_->comm == nullptr ? NcclResult::success : options_.api->async_error(shared_->comm, &background);
    result = asked != NcclResult::success ? asked : background;
  }
}

void NcclLife::connect(int world_size, int rank, const std::string& id) {
  auto none = State::none;
  if (!shared_->state.compare_exchange_strong(none, State::connecting)) {
    throw Error(ErrorCode::internal, "nccl",
                "communicator '" + options_.name + "' is connected twice, or after an abort");
  }
  NcclResult result{};
  {
    std::lock_guard lock(shared_->mutex);
    result = options_.api->init(&shared_->comm, world_size, id, rank, options_.name);
  }
  settle("set-up of communicator '" + options_.name + "'", result, options_.timeout);
  auto connecting = State::connecting;
  if (!shared_->state.compare_exchange_strong(connecting, State::ready))
    settle("set-up", NcclResult::success, options_.timeout);
}

void NcclLife::launch(const std::string& what, const Calls& calls) {
  manage(what, [&](NcclApi& api, NcclComm comm) {
    if (const auto started = api.group_start(); started != NcclResult::success) return started;
    const auto called = calls(api, comm);
    const auto ended = api.group_end();  // also after a call that failed: the group is the thread's
    return is_launched(called) ? ended : called;
  });
}

void NcclLife::manage(const std::string& what, const Calls& calls, const std::shared_ptr<void>& used) {
  try {
    call(what, options_.timeout, calls);
  } catch (...) {
    if (used) keep(used);
    throw;
  }
}

void NcclLife::keep(std::shared_ptr<void> used) {
  std::lock_guard lock(shared_->mutex);
  if (shared_->state != State::ended) shared_->used.push_back(std::move(used));
}

void NcclLife::call(const std::string& what, std::chrono::milliseconds timeout, const Calls& calls) {
  const std::lock_guard turn(shared_->turn);
  NcclResult result = NcclResult::success;
  {
    std::lock_guard lock(shared_->mutex);
    if (shared_->state == State::ready) result = calls(*options_.api, shared_->comm);
  }
  if (shared_->state == State::none || shared_->state == State::connecting) {
    throw Error(ErrorCode::internal, "nccl", "communicator '" + options_.name + "' is used before it is connected");
  }
  settle(what, result, timeout);
}

std::unique_ptr<NcclLife> NcclLife::split(int color, int key, const std::string& name) {
  const auto made = std::make_shared<NcclComm>(nullptr);  // NCCL writes it while the call goes on
  manage(
      "split into '" + name + "'",
      [&](NcclApi& api, NcclComm comm) { return api.split(comm, color, key, made.get(), name); }, made);
  if (color < 0) return nullptr;
  auto options = options_;
  options.name = name;
  auto child = std::unique_ptr<NcclLife>(new NcclLife(std::move(options), *made));
  // The new one has a state of its own, and may be on its way still.
  child->manage("set-up of communicator '" + name + "'", [](NcclApi&, NcclComm) { return NcclResult::in_progress; });
  return child;
}

std::optional<ErrorReport> NcclLife::background_failure() {
  std::lock_guard lock(shared_->mutex);
  if (shared_->state != State::ready) return std::nullopt;
  NcclResult background = NcclResult::success;
  const auto asked = options_.api->async_error(shared_->comm, &background);
  const auto result = asked != NcclResult::success ? asked : background;
  if (is_launched(result)) return std::nullopt;
  return nccl_failure(result, "in the background of communicator '" + options_.name + "'",
                      options_.api->last_error(shared_->comm));
}

}  // namespace troupe
