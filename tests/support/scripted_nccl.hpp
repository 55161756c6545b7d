#pragma once
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tensor_io/communicator/nccl/nccl_api.hpp"

namespace troupe::test {

/// An NCCL that is none: it writes down what is called and answers what the test has set, success otherwise. What is
/// tested with it is what we do with NCCL's answers, not NCCL. As with NCCL 2.28, split and add_window return success
/// and go on for two looks (unless the test scripts them); what they make is there then, and another call before is an
/// invalid argument.
class ScriptedNccl : public NcclApi {
 public:
  /// The next answers of this call, in turn; then success.
  void answer(const std::string& call, std::deque<NcclResult> results) {
    std::lock_guard lock(mutex_);
    answers_[call] = std::move(results);
  }
  /// async_error says this, from when its scripted answers are used up.
  void set_background(NcclResult result) {
    std::lock_guard lock(mutex_);
    background_ = result;
  }
  void set_last_error(std::string text) { last_error_ = std::move(text); }
  /// Called within each call, by name, before it answers: may block.
  std::function<void(const std::string& call)> on_call;

  /// All but async_error, in order.
  std::vector<std::string> calls() const {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  int looks() const {
    std::lock_guard lock(mutex_);
    return looks_;
  }

  int version() override { return 22809; }
  NcclResult unique_id(std::string* id) override {
    *id = std::string(128, 'i');
    return called("unique_id");
  }
  NcclResult init(NcclComm* comm, int, const std::string&, int, const std::string&) override {
    *comm = this;
    return called("init");
  }
  NcclResult async_error(NcclComm, NcclResult* state) override {
    if (on_call) on_call("async_error");
    std::lock_guard lock(mutex_);
    ++looks_;
    auto& script = answers_["async_error"];
    *state = background_;
    if (!script.empty()) {
      *state = script.front();
      script.pop_front();
    } else if (under_way_ > 0) {
      --under_way_;
      *state = NcclResult::in_progress;
    }
    if (*state == NcclResult::success && made_) std::exchange(made_, nullptr)();
    return NcclResult::success;
  }
  std::string last_error(NcclComm) override { return last_error_; }
  NcclResult finalize(NcclComm) override { return called("finalize"); }
  NcclResult destroy(NcclComm) override { return called("destroy"); }
  NcclResult abort(NcclComm) override { return called("abort"); }
  NcclResult split(NcclComm, int color, int, NcclComm* comm, const std::string&) override {
    *comm = nullptr;
    return goes_on("split", [=, this] { *comm = color < 0 ? nullptr : this; });
  }
  NcclResult memory(void** data, std::size_t bytes) override {
    *data = ::operator new(bytes);
    return called("memory");
  }
  NcclResult free_memory(void* data) override {
    ::operator delete(data);
    return called("free_memory");
  }
  NcclResult add_window(NcclComm, void*, std::size_t, void** window) override {
    return goes_on("add_window", [=, this] { *window = this; });
  }
  NcclResult remove_window(NcclComm, void*) override { return called("remove_window"); }
  NcclResult group_start() override { return called("group_start"); }
  NcclResult group_end() override { return called("group_end"); }
  NcclResult all_reduce(const void*, void*, std::size_t, NcclType, NcclOp, NcclComm, NcclStream stream) override {
    return called("all_reduce on s" + std::to_string(reinterpret_cast<std::intptr_t>(stream)));
  }
  NcclResult reduce_scatter(const void*, void*, std::size_t, NcclType, NcclOp, NcclComm, NcclStream) override {
    return called("reduce_scatter");
  }
  NcclResult all_gather(const void*, void*, std::size_t, NcclType, NcclComm, NcclStream) override {
    return called("all_gather");
  }
  NcclResult broadcast(const void*, void*, std::size_t, NcclType, int, NcclComm, NcclStream) override {
    return called("broadcast");
  }
  NcclResult reduce(const void*, void*, std::size_t, NcclType, NcclOp, int, NcclComm, NcclStream) override {
    return called("reduce");
  }
  NcclResult send(const void*, std::size_t, NcclType, int, NcclComm, NcclStream) override { return called("send"); }
  NcclResult recv(void*, std::size_t, NcclType, int, NcclComm, NcclStream) override { return called("recv"); }

 private:
  NcclResult goes_on(const std::string& call, std::function<void()> made) {
    bool is_scripted;
    {
      std::lock_guard lock(mutex_);
      is_scripted = !answers_[call].empty();
    }
    const auto result = called(call);
    if (is_scripted) made();
    std::lock_guard lock(mutex_);
    if (!is_scripted && is_launched(result)) {
      made_ = std::move(made);
      under_way_ = 2;
    }
    return result;
  }
  NcclResult called(const std::string& call) {
    {
      std::lock_guard lock(mutex_);
      calls_.push_back(call);
    }
    if (on_call) on_call(call);
    std::lock_guard lock(mutex_);
    auto& script = answers_[call];
    if (under_way_ > 0 && call != "abort" && call != "group_start") return NcclResult::invalid_argument;
    if (script.empty()) return NcclResult::success;
    const auto result = script.front();
    script.pop_front();
    return result;
  }

  mutable std::mutex mutex_;
  std::map<std::string, std::deque<NcclResult>> answers_;
  NcclResult background_ = NcclResult::success;
  std::vector<std::string> calls_;
  int looks_ = 0;
  int under_way_ = 0;           // looks until the call that returned is over
  std::function<void()> made_;  // what it makes then
  std::string last_error_;
};

}  // namespace troupe::test
