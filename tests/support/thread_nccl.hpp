#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensor_io/communicator/nccl/nccl_api.hpp"
#include "tensor_io/kernels/reduce_kernels.hpp"
#include "tests/support/nccl_bytes.hpp"

namespace troupe::test {

/// NCCL's contract between threads of one process, on the host's memory: groups end at once and go on in the
/// background, a rank whose peer is gone gets remote_error, an abort frees its own rank. Memory that NVLS reads or
/// writes (2.28.9: both sides of an all-reduce, the larger one of a gather or scatter) lies at the same place of the
/// same window on all ranks, or in none; else it is an invalid usage, where NCCL waits for ever. The conformance suite
/// runs over it, and so checks what NcclCommunicator makes of NCCL's calls; it says nothing about NCCL.
class ThreadNccl : public NcclApi {
 public:
  int version() override { return 22809; }
  NcclResult unique_id(std::string* id) override {
    std::lock_guard lock(mutex_);
    *id = std::to_string(++ids_);
    id->resize(128);
    return NcclResult::success;
  }
  NcclResult init(NcclComm* comm, int world_size, const std::string& id, int rank, const std::string&) override {
    *comm = join(id, world_size, rank);
    return NcclResult::in_progress;
  }
  NcclResult async_error(NcclComm comm, NcclResult* state) override {
    auto& own = of(comm);
    std::lock_guard lock(own.group->mutex);
    *state = own.state();
    return NcclResult::success;
  }
  std::string last_error(NcclComm comm) override {
    std::lock_guard lock(of(comm).group->mutex);
    return of(comm).group->mixed;
  }
  NcclResult finalize(NcclComm) override { return NcclResult::success; }
  NcclResult destroy(NcclComm comm) override { return abort(comm); }
  NcclResult abort(NcclComm comm) override {
    auto* own = &of(comm);
    {
      std::lock_guard lock(own->group->mutex);
      own->stopping = true;
      own->group->lost = true;
      own->group->changed.notify_all();
    }
    own->worker.join();
    delete own;
    return NcclResult::success;
  }
  NcclResult split(NcclComm parent, int color, int key, NcclComm* comm, const std::string&) override {
    auto& own = of(parent);
    submit(own, {[this, &own, color, key, comm] {
             const int mine_said[] = {color, key};
             std::vector<std::pair<int, int>> mine;  // (key, rank)
             if (!own.meet(mine_said, sizeof mine_said, [&](int rank, const char* theirs) {
                   int said[2];
                   std::memcpy(said, theirs, sizeof said);
                   if (said[0] == color) mine.emplace_back(said[1], rank);
                 }))
               return;
             std::sort(mine.begin(), mine.end());
             *comm = nullptr;
             if (color >= 0) {
               const auto place = std::find(mine.begin(), mine.end(), std::pair(key, own.rank));
               const auto name = own.group->id.substr(0, own.group->id.find('\0')) + "/" + std::to_string(own.splits) +
                                 "." + std::to_string(color);
               *comm = join(name, static_cast<int>(mine.size()), static_cast<int>(place - mine.begin()));
             }
             ++own.splits;
           }});
    return NcclResult::in_progress;
  }

  NcclResult memory(void** data, std::size_t bytes) override {
    *data = ::operator new(bytes, std::align_val_t(4096));
    return NcclResult::success;
  }
  NcclResult free_memory(void* data) override {
    ::operator delete(data, std::align_val_t(4096));
    return NcclResult::success;
  }
  NcclResult add_window(NcclComm comm, void* data, std::size_t bytes, void** window) override {
    auto& own = of(comm);
    std::lock_guard lock(own.group->mutex);
    own.windows.push_back({static_cast<const char*>(data), bytes, own.window_count++});
    *window = data;
    return NcclResult::success;
  }
  NcclResult remove_window(NcclComm comm, void* window) override {
    auto& own = of(comm);
    std::lock_guard lock(own.group->mutex);
    std::erase_if(own.windows, [&](const auto& other) { return other.begin == window; });
    return NcclResult::success;
  }

  NcclResult group_start() override {
    if (grouped().open) return NcclResult::invalid_usage;
    grouped() = {};
    grouped().open = true;
    return NcclResult::success;
  }
  NcclResult group_end() override {
    auto group = std::exchange(grouped(), {});
    if (!group.open) return NcclResult::invalid_usage;
    if (group.comm == nullptr) return NcclResult::success;
    submit(*group.comm, {[group = std::move(group)] {
      for (const auto& begin : group.begins) begin();
      for (const auto& work : group.works) work();
      for (const auto& end : group.ends) end();
    }});
    return NcclResult::in_progress;
  }

  /// How many averages of `count` elements or more were asked for: NVLS and symmetric kernels know sums alone.
  std::int64_t averages_from(std::size_t count) const {
    return calls_from(count, [](const Call& call) { return call.average; });
  }
  /// How many all-gathers, reduce-scatters .. of `count` elements or more a rank, on all ranks.
  std::int64_t calls_from(std::size_t count, const std::string& name) const {
    return calls_from(count, [&](const Call& call) { return call.name == name; });
  }

  NcclResult all_reduce(const void* input, void* output, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                        NcclStream) override {
    note("all_reduce", count, op);
    const auto places = of(comm).place_of(input) + " and " + of(comm).place_of(output);
    return enqueue(comm, [=](Comm& own) { own.reduce(input, count, 0, output, count, type, op, places); });
  }
  NcclResult reduce_scatter(const void* input, void* output, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                            NcclStream) override {
    note("reduce_scatter", count, op);
    const auto place = of(comm).place_of(input);
    return enqueue(comm, [=](Comm& own) {
      own.reduce(input, count * own.group->ranks, static_cast<std::size_t>(own.rank) * count * bytes_of(type), output,
                 count, type, op, place);
    });
  }
  NcclResult reduce(const void* input, void* output, std::size_t count, NcclType type, NcclOp op, int root,
                    NcclComm comm, NcclStream) override {
    return enqueue(
        comm, [=](Comm& own) { own.reduce(input, count, 0, own.rank == root ? output : nullptr, count, type, op); });
  }
  NcclResult all_gather(const void* input, void* output, std::size_t count, NcclType type, NcclComm comm,
                        NcclStream) override {
    note("all_gather", count);
    const auto place = of(comm).place_of(output);
    return enqueue(comm, [=](Comm& own) {
      const auto bytes = count * bytes_of(type);
      std::vector<char> all(bytes * own.group->ranks);
      own.place = place;
      if (!own.meet(input, bytes, [&](int rank, const char* theirs) {
            std::memcpy(all.data() + static_cast<std::size_t>(rank) * bytes, theirs, bytes);
          }))
        return;
      std::memcpy(output, all.data(), all.size());
    });
  }
  NcclResult broadcast(const void* input, void* output, std::size_t count, NcclType type, int root, NcclComm comm,
                       NcclStream) override {
    return enqueue(comm, [=](Comm& own) {
      std::vector<char> data(count * bytes_of(type));
      if (!own.meet(input, data.size(), [&](int rank, const char* theirs) {
            if (rank == root) std::memcpy(data.data(), theirs, data.size());
          }))
        return;
      std::memcpy(output, data.data(), data.size());
    });
  }
  NcclResult send(const void* data, std::size_t count, NcclType type, int peer, NcclComm comm, NcclStream) override {
    const auto letter = std::make_shared<Letter>();
    const auto bytes = count * bytes_of(type);
    auto* own = &of(comm);
    grouped().begins.push_back([=] {
      std::lock_guard lock(own->group->mutex);
      letter->data.assign(static_cast<const char*>(data), static_cast<const char*>(data) + bytes);
      own->group->letters[{own->rank, peer}].push_back(letter);
      own->group->changed.notify_all();
    });
    return enqueue(
        comm, [=](Comm& self) { self.wait([&] { return letter->taken; }); }, &Grouped::ends);
  }
  NcclResult recv(void* data, std::size_t count, NcclType type, int peer, NcclComm comm, NcclStream) override {
    return enqueue(comm, [=](Comm& own) {
      auto& letters = own.group->letters;
      std::unique_lock lock(own.group->mutex);
      own.group->changed.wait(lock, [&] {
        return own.stopping || own.group->lost || !letters[{peer, own.rank}].empty();
      });
      auto& mine = letters[{peer, own.rank}];
      if (mine.empty()) return own.fail();
      const auto letter = mine.front();
      mine.pop_front();
      if (letter->data.size() != count * bytes_of(type)) throw std::logic_error("send and recv of different length");
      std::memcpy(data, letter->data.data(), letter->data.size());
      letter->taken = true;
      own.group->changed.notify_all();
    });
  }

 private:
  struct Call {
    std::string name;
    std::size_t count;
    bool average;
  };
  void note(const std::string& name, std::size_t count, NcclOp op = NcclOp::sum) {
    std::lock_guard lock(calls_mutex_);
    calls_.push_back({name, count, op == NcclOp::avg});
  }
  template <class Holds>
  requires std::is_invocable_v<Holds, const Call&> std::int64_t calls_from(std::size_t count, const Holds& holds)
  const {
    std::lock_guard lock(calls_mutex_);
    return std::count_if(calls_.begin(), calls_.end(),
                         [&](const auto& call) { return call.count >= count && holds(call); });
  }

  mutable std::mutex calls_mutex_;
  std::vector<Call> calls_;

  struct Comm;
  struct Letter {
    std::vector<char> data;
    bool taken = false;
  };
  struct Group {
    std::string id;
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t ranks = 0;
    // What each rank has brought to a meeting: a copy, since a rank may die while others read it.
    std::vector<std::shared_ptr<const std::vector<char>>> brought;
    std::vector<std::string> places;  // of what each rank has brought
    std::string mixed;                // the first two that differ
    std::size_t joined = 0;
    bool lost = false;
    std::size_t arrived = 0, meeting = 0;
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> letters;
  };
  using Work = std::function<void()>;

  struct Comm {
    std::shared_ptr<Group> group;
    int rank = 0;
    int splits = 0;
    // Guarded by the group's mutex.
    std::deque<Work> works;
    bool working = false, stopping = false, failed = false;
    struct Window {
      const char* begin;
      std::size_t bytes;
      int number;
    };
    std::vector<Window> windows;
    int window_count = 0;
    std::string place;  // of the memory of the collective under way, which must be the same on all ranks
    std::thread worker;

    NcclResult state() const {
      if (!group->mixed.empty()) return NcclResult::invalid_usage;
      if (failed) return NcclResult::remote_error;
      const bool all = group->joined == group->ranks;
      if (!all && group->lost) return NcclResult::remote_error;
      return working || !works.empty() || !all ? NcclResult::in_progress : NcclResult::success;
    }
    void fail() { failed = true; }
    /// Of registered memory: the window's number and the bytes before it there.
    std::string place_of(const void* memory) const {
      std::lock_guard lock(group->mutex);
      const auto* begin = static_cast<const char*>(memory);
      for (const auto& window : windows) {
        if (begin >= window.begin && begin < window.begin + window.bytes)
          return "window " + std::to_string(window.number) + " at " + std::to_string(begin - window.begin);
      }
      return "no window";
    }
    void check_places() {
      std::lock_guard lock(group->mutex);
      for (std::size_t r = 1; r < group->places.size() && group->mixed.empty(); ++r) {
        if (group->places[r] != group->places[0])
          group->mixed = "rank 0 has " + group->places[0] + ", rank " + std::to_string(r) + " " + group->places[r];
      }
    }
    template <class Condition>
    bool wait(Condition condition) {
      std::unique_lock lock(group->mutex);
      group->changed.wait(lock, [&] { return stopping || group->lost || condition(); });
      if (!condition()) fail();
      return condition();
    }
    bool barrier() {
      std::unique_lock lock(group->mutex);
      const auto meeting = group->meeting;
      if (++group->arrived == group->ranks) {
        group->arrived = 0;
        ++group->meeting;
        group->changed.notify_all();
      }
      group->changed.wait(lock, [&] { return stopping || group->lost || group->meeting != meeting; });
      if (group->meeting == meeting) fail();
      return group->meeting != meeting;
    }
    // `look` sees what every rank brings, in rank order, until the meeting is over; afterwards all may write.
    bool meet(const void* data, std::size_t bytes, const std::function<void(int rank, const char* theirs)>& look) {
      const auto* begin = static_cast<const char*>(data);
      {
        std::lock_guard lock(group->mutex);
        group->brought[static_cast<std::size_t>(rank)] =
            std::make_shared<const std::vector<char>>(begin, begin + bytes);
        group->places[static_cast<std::size_t>(rank)] = std::exchange(place, {});
      }
      if (!barrier()) return false;
      check_places();
      std::vector<std::shared_ptr<const std::vector<char>>> brought;
      {
        std::lock_guard lock(group->mutex);
        brought = group->brought;
      }
      for (std::size_t r = 0; r < brought.size(); ++r) look(static_cast<int>(r), brought[r]->data());
      return barrier();
    }
    /// `given` elements are brought, of which `count` from `offset` bytes on are added up.
    void reduce(const void* data, std::size_t given, std::size_t offset, void* output, std::size_t count, NcclType type,
                NcclOp op, const std::string& places = {}) {
      place = places;
      std::vector<const void*> inputs;
      std::vector<char> result(count * bytes_of(type));
      if (!meet(data, given * bytes_of(type), [&](int, const char* theirs) {
            inputs.push_back(theirs + offset);
            if (inputs.size() < group->ranks) return;
            void* target = result.data();
            ReduceTask task;
            task.element = element_of(type);
            task.reduction = op == NcclOp::max       ? Reduction::max
                             : op == NcclOp::min     ? Reduction::min
                             : op == NcclOp::product ? Reduction::product
                                                     : Reduction::sum;
            task.divisor = op == NcclOp::avg ? static_cast<int>(inputs.size()) : 1;
            task.inputs = inputs.data();
            task.input_count = static_cast<int>(inputs.size());
            task.outputs = &target;
            task.output_count = 1;
            task.numel = static_cast<std::int64_t>(count);
            troupe::reduce(task);
          }))
        return;
      if (output != nullptr) std::memcpy(output, result.data(), result.size());
    }
  };

  struct Grouped {
    bool open = false;
    Comm* comm = nullptr;
    std::vector<Work> begins, works, ends;  // a send begins before all receives and is over after them
  };

  static Grouped& grouped() {
    thread_local Grouped group;
    return group;
  }
  static Comm& of(NcclComm comm) { return *static_cast<Comm*>(comm); }
  static Element element_of(NcclType type) {
    switch (type) {
      case NcclType::f64: return Element::f64;
      case NcclType::int64: return Element::i64;
      case NcclType::f32: return Element::f32;
      case NcclType::int32: return Element::i32;
      case NcclType::f16: return Element::f16;
      case NcclType::bf16: return Element::bf16;
      case NcclType::uint8: return Element::u8;
      default: throw std::logic_error("a type that the test's NCCL does not add");
    }
  }

  NcclResult enqueue(NcclComm comm, std::function<void(Comm&)> work,
                     std::vector<Work> Grouped::*list = &Grouped::works) {
    auto& group = grouped();
    if (!group.open || (group.comm != nullptr && group.comm != &of(comm))) return NcclResult::invalid_usage;
    group.comm = &of(comm);
    (group.*list).push_back([work = std::move(work), own = group.comm] {
      if (!own->failed) work(*own);
    });
    return NcclResult::success;
  }

  static void submit(Comm& own, Work work) {
    std::lock_guard lock(own.group->mutex);
    own.works.push_back(std::move(work));
    own.group->changed.notify_all();
  }

  Comm* join(const std::string& id, int world_size, int rank) {
    auto* own = new Comm;
    own->rank = rank;
    {
      std::lock_guard lock(mutex_);
      auto& group = groups_[id];
      if (!group) group = std::make_shared<Group>();
      group->id = id;
      own->group = group;
    }
    auto& group = *own->group;
    std::lock_guard lock(group.mutex);
    group.ranks = static_cast<std::size_t>(world_size);
    group.brought.resize(group.ranks);
    group.places.resize(group.ranks);
    ++group.joined;
    own->worker = std::thread([own] {
      std::unique_lock inside(own->group->mutex);
      for (;;) {
        own->group->changed.wait(inside, [&] { return own->stopping || !own->works.empty(); });
        if (own->stopping) return;
        const auto work = std::move(own->works.front());
        own->works.pop_front();
        own->working = true;
        inside.unlock();
        work();
        inside.lock();
        own->working = false;
      }
    });
    return own;
  }

  std::mutex mutex_;
  int ids_ = 0;
  std::map<std::string, std::shared_ptr<Group>> groups_;
};

}  // namespace troupe::test
