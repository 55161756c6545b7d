// What every back end does when ranks disagree, hang, leave or are told to stop.
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tests/catch.hpp"
#include "tests/support/rank_threads.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

GroupOptions group_of(const Backend& backend, int world_size, std::chrono::milliseconds timeout = 20s) {
  GroupOptions group;
  group.backend = backend;
  group.world_size = world_size;
  group.timeout = timeout;
  return group;
}

const Backend kShm{"shm", "shm"};

template <class Call>
void require_usage(Call call, const std::string& says) {
  try {
    call();
  } catch (const Error& error) {
    require(error.code() == ErrorCode::usage, std::string("usage: ") + error.what());
    require(std::string(error.what()).find(says) != std::string::npos, "'" + says + "' in: " + error.what());
    return;
  }
  throw std::runtime_error("not refused: " + says);
}

}  // namespace

TEST_CASE("[L03] a tensor that cannot be moved is refused before a peer is touched, and the group goes on",
          "[communicator]") {
  for (const auto& backend : all_backends()) {
    INFO(backend.name);
    CHECK_NOTHROW(run_ranks(group_of(backend, 3), [](Communicator& communicator) {
      const auto good = at::ones({4}, at::kFloat);
      if (communicator.rank() == 1) {  // one rank only: the others would hang if anything had been sent
        require_usage(
            [&] {
              communicator.all_reduce(at::ones({4, 4}, at::kFloat).t());
            },
            "`tensor` is not contiguous; call .contiguous()");
        require_usage([&] { communicator.all_reduce(at::empty({4}, at::TensorOptions().device(at::kMeta))); },
                      "is on meta");
        require_usage([&] { communicator.all_reduce(at::Tensor()); }, "undefined");
        require_usage([&] { communicator.all_reduce(at::ones({4}, at::kShort)); }, "is Short");
        require_usage([&] { communicator.all_reduce(at::ones({4}, at::kComplexFloat)); }, "is ComplexFloat");
        require_usage([&] { communicator.all_reduce(at::ones({4}, at::kLong), ReduceOp::avg); }, "avg of Long");
        require_usage([&] { communicator.all_reduce(at::eye(3).to_sparse()); }, "sparse");
        require_usage([&] { communicator.all_gather(at::ones({11}), good); }, "it must have 3 times the 4");
        require_usage([&] { communicator.all_gather(at::ones({12}, at::kDouble), good); },
                      "`output` is Double, `input` is Float");
        require_usage([&] { communicator.reduce_scatter(good, at::ones({13})); }, "it must have 3 times the 4");
        require_usage([&] { communicator.broadcast(good, 3); }, "`root` is 3, the group has ranks 0 to 2");
        require_usage([&] { communicator.send(good, 1); }, "cannot send to itself");
        require_usage([&] { communicator.recv(good, -1); }, "`source` is -1");
        require_usage([&] { communicator.all_to_all(at::ones({4}), good); }, "cannot be cut into 3");
        require_usage([&] { communicator.all_to_all(good, good); }, "overlap");
        const auto all = at::ones({12});
        require_usage([&] { communicator.all_gather(all, all.narrow(0, 0, 4)); }, "overlap");
        require_usage([&] { communicator.allocate(-1, at::kFloat); }, "-1 elements");
      }
      communicator.all_reduce(good);
      require(good[3].item<float>() == 3, "the group still works");
    }));
  }
}

TEST_CASE("options that mean nothing are refused with the reason", "[communicator]") {
  const auto refused = [](CommunicatorOptions options) {
    try {
      make_communicator(options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("made");
  };
  CommunicatorOptions options;
  options.world_size = 2;
  CHECK_THAT(refused(options), Catch::Contains("no rendezvous"));
  options.rendezvous = std::make_shared<LocalRendezvous>();
  options.rank = 2;
  CHECK_THAT(refused(options), Catch::Contains("rank 2 of 2"));
  options.rank = 0;
  options.backend = "mpi";
  CHECK_THAT(refused(options), Catch::Contains("'mpi'") && Catch::Contains("auto, shm, gloo, hierarchical or nccl"));
}

TEST_CASE(
    "[D13] fault 20, fault 21: on shared memory a rank at another call is named at once, with both calls, on every "
    "rank",
    "[communicator]") {
  using Call = std::function<void(Communicator&)>;
  const auto tensor = [](std::int64_t numel, at::ScalarType dtype = at::kFloat) { return at::ones({numel}, dtype); };
  struct Case {
    std::string name;
    Call others;
    Call odd;
    std::string says_others;
    std::string says_odd;
  };
  const std::vector<Case> cases = {
      {"another collective", [&](auto& c) { c.all_reduce(tensor(5), ReduceOp::sum, "bucket 3"); },
       [&](auto& c) { c.all_gather(tensor(15), tensor(5)); },
       "ranks 0 and 2 are at all_reduce of 5 Float (bucket 3, step 12)",
       "rank 1 is at all_gather of 5 Float (step 12)"},
      {"another length", [&](auto& c) { c.all_reduce(tensor(50'000)); }, [&](auto& c) { c.all_reduce(tensor(7)); },
       "all_reduce of 50000 Float", "rank 1 is at all_reduce of 7 Float"},
      {"another type", [&](auto& c) { c.all_reduce(tensor(5)); }, [&](auto& c) { c.all_reduce(tensor(5, at::kInt)); },
       "of 5 Float", "rank 1 is at all_reduce of 5 Int"},
      {"another operation", [&](auto& c) { c.all_reduce(tensor(5)); },
       [&](auto& c) { c.all_reduce(tensor(5), ReduceOp::max); }, "of 5 Float",
       "rank 1 is at all_reduce of 5 Float by max"},
      {"another root", [&](auto& c) { c.broadcast(tensor(5), 0); }, [&](auto& c) { c.broadcast(tensor(5), 2); },
       "with root 0", "rank 1 is at broadcast of 5 Float with root 2"},
      {"another bucket", [&](auto& c) { c.all_reduce(tensor(5), ReduceOp::sum, "bucket 1"); },
       [&](auto& c) { c.all_reduce(tensor(5), ReduceOp::sum, "bucket 2"); }, "(bucket 1, step 12)",
       "(bucket 2, step 12)"},
      {"an extra call", [&](auto& c) { c.all_reduce(tensor(5)); }, [&](auto& c) { c.barrier("mine"); },
       "all_reduce of 5 Float", "rank 1 is at barrier (mine, step 12)"},
  };
  for (const auto& one : cases) {
    INFO(one.name);
    const auto failures = run_ranks_catching(group_of(kShm, 3), [&](Communicator& communicator) {
      communicator.ledger().set_step(12);
      communicator.barrier();
      communicator.rank() == 1 ? one.odd(communicator) : one.others(communicator);
    });
    for (int r = 0; r < 3; ++r) {
      REQUIRE(failures[r]);
      CHECK(failures[r]->report.code == ErrorCode::mismatch);
      CHECK(failures[r]->report.rank == r);
      CHECK(failures[r]->report.step == 12);
      CHECK_THAT(failures[r]->text, Catch::Contains(one.says_others) && Catch::Contains(one.says_odd));
      CHECK(failures[r]->after < 10s);  // not the group's 20 s
    }
  }
}

TEST_CASE("[D13] on shared memory a recv that does not fit its send is named on both sides", "[communicator]") {
  const auto failures = run_ranks_catching(group_of(kShm, 2), [&](Communicator& communicator) {
    const auto tensor = at::ones({communicator.rank() == 0 ? 5 : 6});
    communicator.rank() == 0 ? communicator.send(tensor, 1, "activations")
                             : communicator.recv(tensor, 0, "activations");
  });
  for (const auto& failure : failures) {
    REQUIRE(failure);
    CHECK(failure->report.code == ErrorCode::mismatch);
    CHECK_THAT(failure->text, Catch::Contains("rank 0 is at send of 5 Float to 1") &&
                                  Catch::Contains("rank 1 is at recv of 6 Float from 0"));
  }
}

// Rank 1 only waits for rank 0, and says so when that is gone: its message is another than the one that rank 2 waits
// for.
TEST_CASE("[D13] over TCP a rank that waits for one that waits for a third accuses nobody of another call",
          "[communicator]") {
  const auto failures = run_ranks_catching(group_of({"gloo", "gloo"}, 3), [&](Communicator& communicator) {
    communicator.barrier();
    if (communicator.rank() == 0) {
      std::this_thread::sleep_for(300ms);  // the others are waiting
      communicator.abort({ErrorCode::peer_lost, 0, {}, -1, {}, "it was told to go", {}});
      return;
    }
    communicator.recv(at::zeros({4 + communicator.rank()}), communicator.rank() - 1, "shard");
  });
  for (const int r : {1, 2}) {
    REQUIRE(failures[r]);
    INFO(failures[r]->text);
    CHECK(may_be_recovered(failures[r]->report.code));
  }
}

// The root waits for rank 0, which is gone; rank 2 is through with the reduction and sends to the root already.
TEST_CASE("[D13] over TCP a rank that is still in a call which the other has left is accused of no other call",
          "[communicator]") {
  GroupOptions group = group_of({"gloo", "gloo"}, 3);
  const auto failures = run_ranks_catching(group, [](Communicator& communicator) {
    if (communicator.rank() == 0) return;
    const auto tensor = at::ones({1000});
    communicator.reduce(tensor, 1);
    if (communicator.rank() == 2) communicator.send(tensor, 1);
  });
  for (const int rank : {1, 2}) {
    const auto& failure = failures[static_cast<std::size_t>(rank)];
    REQUIRE(failure);
    INFO(failure->text);
    CHECK(failure->report.code == ErrorCode::peer_lost);
  }
}

TEST_CASE(
    "[D13] fault 20, fault 21: over TCP ranks at different calls exchange nothing and are named when the deadline "
    "passes",
    "[communicator]") {
  for (const std::string backend : {"gloo", "hierarchical"}) {
    INFO(backend);
    const Backend one_rank_per_host{backend, backend, false, [](int rank) { return std::to_string(rank); }};
    const auto failures = run_ranks_catching(group_of(one_rank_per_host, 2, 300ms), [&](Communicator& communicator) {
      const auto tensor = at::full({communicator.rank() == 0 ? 4 : 400}, communicator.rank(), at::kFloat);
      try {
        communicator.all_reduce(tensor);
      } catch (const Error&) {
        require(tensor.eq(communicator.rank()).all().item<bool>(), "the tensor is as it was");
        throw;
      }
    });
    for (const auto& failure : failures) {
      REQUIRE(failure);
      CHECK_THAT(failure->text, Catch::Contains("rank 0 is at all_reduce of 4 Float") &&
                                    Catch::Contains("rank 1 is at all_reduce of 400 Float"));
    }
  }
}

TEST_CASE("[D15] a rank that does not come is named when the deadline passes", "[communicator]") {
  for (const auto& backend : all_backends()) {
    INFO(backend.name);
    std::atomic<int> failed{0};
    const auto failures = run_ranks_catching(group_of(backend, 3, 300ms), [&](Communicator& communicator) {
      communicator.barrier();
      if (communicator.rank() == 1) {  // hangs, alive, until the others have given up
        const auto until = std::chrono::steady_clock::now() + 10s;
        while (failed < 2 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(5ms);
        return;
      }
      try {
        communicator.all_reduce(at::ones({100'000}), ReduceOp::sum, "bucket 0");
      } catch (const Error&) {
        ++failed;
        throw;
      }
    });
    CHECK_FALSE(failures[1]);
    for (const int r : {0, 2}) {
      REQUIRE(failures[r]);
      INFO(failures[r]->text);
      // a rank of another host may hear of it from its leader, who gave up first
      CHECK((failures[r]->report.code == ErrorCode::timeout ||
             (r == 2 && failures[r]->report.code == ErrorCode::aborted)));
      CHECK_THAT(failures[r]->text,
                 Catch::Contains("rank 1 did not arrive within 300 ms") && Catch::Contains("bucket 0"));
      CHECK(failures[r]->after < 10s);
    }
  }
}

TEST_CASE("a receiver names the sender that does not come", "[communicator]") {
  for (const auto& backend : all_backends()) {
    INFO(backend.name);
    std::atomic<bool> failed{false};
    const auto failures = run_ranks_catching(group_of(backend, 3, 200ms), [&](Communicator& communicator) {
      communicator.barrier();
      if (communicator.rank() == 0) {
        try {
          communicator.recv(at::ones({5}), 1);
        } catch (const Error&) {
          failed = true;
          throw;
        }
      }
      const auto until = std::chrono::steady_clock::now() + 10s;
      while (!failed && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(5ms);
    });
    REQUIRE(failures[0]);
    CHECK(failures[0]->report.code == ErrorCode::timeout);
    CHECK_THAT(failures[0]->text,
               Catch::Contains("rank 1 did not arrive") && Catch::Contains("recv of 5 Float from 1"));
  }
}

TEST_CASE("ranks that never join are named when the group is set up", "[communicator]") {
  for (const std::string backend : {"auto", "shm", "gloo", "hierarchical"}) {
    INFO(backend);
    CommunicatorOptions options;
    options.world_size = 3;
    options.backend = backend;
    options.timeout = 100ms;
    options.rendezvous = std::make_shared<LocalRendezvous>();
    try {
      make_communicator(options);
      FAIL("made");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::timeout);
      CHECK_THAT(error.what(), Catch::Contains("rank 1, rank 2 did not arrive within 100 ms"));
    }
  }
}

TEST_CASE("shared memory that was forced on ranks of two hosts is unavailable, on all of them", "[communicator]") {
  const Backend two_hosts{"shm", "shm", false, [](int rank) { return std::to_string(rank); }};
  const auto failures = run_ranks_catching(group_of(two_hosts, 2), [](Communicator&) {});
  for (const auto& failure : failures) {
    REQUIRE(failure);
    CHECK(failure->report.code == ErrorCode::unavailable);
    CHECK_THAT(failure->text, Catch::Contains("on 2 hosts"));
  }
}

TEST_CASE("abort frees every waiter with the first reason, and every later call throws it", "[communicator]") {
  for (const auto& backend : all_backends()) {
    INFO(backend.name);
    std::atomic<Communicator*> victim{nullptr};
    std::atomic<int> freed{0};
    std::atomic<bool> supervisor_done{false};
    std::chrono::steady_clock::time_point aborted_at;
    std::thread supervisor([&] {
      while (victim == nullptr) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(100ms);  // let it wait
      aborted_at = std::chrono::steady_clock::now();
      victim.load()->abort({ErrorCode::peer_lost, 2, {}, -1, {}, "the node of rank 2 is gone", {}});
      victim.load()->abort({ErrorCode::internal, -1, {}, -1, {}, "a later reason", {}});
      supervisor_done = true;
    });
    std::vector<std::chrono::milliseconds> took(3);
    const auto failures = run_ranks_catching(group_of(backend, 3), [&](Communicator& communicator) {
      communicator.barrier();
      const auto until = std::chrono::steady_clock::now() + 10s;
      if (communicator.rank() == 2) {  // never calls
        while (freed < 2 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(5ms);
        return;
      }
      if (communicator.rank() == 0) victim = &communicator;
      std::string first;
      try {
        communicator.all_reduce(at::ones({70'000}), ReduceOp::sum, "bucket 1");
      } catch (const Error& error) {
        took[communicator.rank()] =
            std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - aborted_at);
        first = error.report().cause;
      }
      ++freed;
      while ((freed < 2 || !supervisor_done) && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(5ms);
      try {
        communicator.barrier("later");
      } catch (const Error& error) {
        require(error.report().cause == first, std::string("the first reason, not: ") + error.what());
        throw;
      }
    });
    supervisor.join();
    CHECK_FALSE(failures[2]);
    for (const int r : {0, 1}) {
      REQUIRE(failures[r]);
      CHECK(failures[r]->report.code == ErrorCode::aborted);
      CHECK_THAT(failures[r]->text,
                 Catch::Contains("the node of rank 2 is gone") && !Catch::Contains("a later reason"));
      CHECK(took[r] < 5s);  // promised: 1 s, of the group's 20
    }
  }
}

TEST_CASE("who destroys its communicator while others wait for it is named", "[communicator]") {
  for (const auto& backend : all_backends()) {
    INFO(backend.name);
    const auto failures = run_ranks_catching(group_of(backend, 3), [](Communicator& communicator) {
      communicator.barrier();
      if (communicator.rank() != 1) communicator.all_reduce(at::ones({10}));
    });
    CHECK_FALSE(failures[1]);
    for (const int r : {0, 2}) {
      REQUIRE(failures[r]);
      INFO(failures[r]->text);
      CHECK_THAT(failures[r]->text, Catch::Contains("rank 1") && Catch::Contains("left the group"));
      CHECK(failures[r]->after < 10s);
    }
  }
}

TEST_CASE("[L05] who is ended within a call says nothing more: the others lose a peer, and may go on without it",
          "[communicator]") {
  struct EndsIt final : FaultWatch {
    void at(const char*, std::int64_t) override { throw Error(ErrorCode::fenced, {}, "it was killed"); }
  };
  const auto failures = run_ranks_catching(group_of(kShm, 3), [](Communicator& communicator) {
    if (communicator.rank() == 1) set_fault_watch(std::make_shared<EndsIt>());
    (void)communicator.allocate(1000, at::kFloat);
  });
  for (const auto& failure : failures) REQUIRE(failure);
  CHECK(failures[1]->report.code == ErrorCode::fenced);
  for (const int other : {0, 2}) {
    CHECK(failures[other]->report.code == ErrorCode::peer_lost);
    CHECK_THAT(failures[other]->text, Catch::Contains("rank 1 left the group"));
  }
}

TEST_CASE("ranks that end one after the other lose nothing of the last call", "[communicator]") {
  for (const auto& backend : all_backends()) {
    INFO(backend.name);
    for (int repeat = 0; repeat < 5; ++repeat) {
      CHECK_NOTHROW(run_ranks(group_of(backend, 4), [&](Communicator& communicator) {
        const auto tensor = at::ones({200'000});
        communicator.all_reduce(tensor);
        require(tensor[199'999].item<float>() == 4, "the sum");
      }));
    }
  }
}

namespace {

/// A stranger at the data ports: connects to each as soon as its address is published, before the peer can, and talks.
class StrangerRendezvous final : public Rendezvous {
 public:
  explicit StrangerRendezvous(std::string words) : words_(std::move(words)) {}
  ~StrangerRendezvous() override {
    for (const int fd : connected_) ::close(fd);
  }
  void put(const std::string& key, std::string value) override {
    if (key.find("/gloo/") != std::string::npos && value.size() > sizeof(sockaddr_in)) visit(value);
    inner_.put(key, std::move(value));
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return inner_.get(key, timeout);
  }
  void abort(const ErrorReport& reason) noexcept override { inner_.abort(reason); }
  void throw_if_aborted(const std::string& operation) override { inner_.throw_if_aborted(operation); }
  int visits() const { return visits_; }
  /// Once more to every port that there ever was: how many let it in.
  int let_in() const {
    int n = 0;
    std::lock_guard lock(mutex_);
    for (const auto& address : ports_) {
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      n += ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 1 : 0;
      ::close(fd);
    }
    return n;
  }

 private:
  void visit(const std::string& value) {
    sockaddr_in address{};
    std::memcpy(&address, value.data(), sizeof address);  // Gloo's Address begins with it
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    std::lock_guard lock(mutex_);
    ports_.push_back(address);
    connected_.push_back(fd);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
    ++visits_;
    if (!words_.empty()) (void)!::send(fd, words_.data(), words_.size(), MSG_NOSIGNAL);
  }

  LocalRendezvous inner_;
  std::string words_;
  mutable std::mutex mutex_;
  std::vector<int> connected_;
  std::vector<sockaddr_in> ports_;
  std::atomic<int> visits_{0};
};

}  // namespace

TEST_CASE("[L05] fault 19: a stranger at the data ports is not taken for a peer, and the collectives do not notice",
          "[communicator]") {
  const std::string words =
      GENERATE(as<std::string>{}, "", "GET / HTTP/1.1\r\n\r\n", std::string(4096, '\xff'), std::string(48, '\0'));
  const auto rendezvous = std::make_shared<StrangerRendezvous>(words);
  GroupOptions group = group_of({"gloo", "gloo"}, 3, 20s);
  group.rendezvous = rendezvous;
  CHECK_NOTHROW(run_ranks(group, [&](Communicator& communicator) {
    for (int round = 0; round < 20; ++round) {
      const auto tensor = at::full({1000}, communicator.rank() + 1, at::kFloat);
      communicator.all_reduce(tensor);
      require(tensor[999].item<float>() == 6, "the sum is right");
      if (communicator.rank() == 0 && round == 10) require(rendezvous->let_in() == 0, "no data port is open any more");
    }
  }));
  CHECK(rendezvous->visits() == 6);  // two ports a rank
}

namespace {

/// Rank 1 of two is interrupted when all addresses are known, and leaves before it has connected.
class InterruptedRendezvous final : public Rendezvous {
 public:
  void put(const std::string& key, std::string value) override { inner_.put(key, std::move(value)); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    auto value = inner_.get(key, timeout);
    if (key.ends_with("/gloo/1-0")) rank_0_knows_.set_value();
    if (key.ends_with("/gloo/0-1")) {
      rank_0_knows_.get_future().wait();
      inner_.abort({ErrorCode::aborted, -1, {}, -1, {}, "another rank joins", {}});
      inner_.throw_if_aborted(key);
    }
    return value;
  }
  void abort(const ErrorReport& reason) noexcept override { inner_.abort(reason); }
  void throw_if_aborted(const std::string& operation) override { inner_.throw_if_aborted(operation); }

 private:
  LocalRendezvous inner_;
  std::promise<void> rank_0_knows_;
};

}  // namespace

TEST_CASE("[L05] an interruption ends the set-up of a communicator wherever it waits", "[communicator]") {
  auto group = group_of({"gloo", "gloo"}, 2);
  group.rendezvous = std::make_shared<InterruptedRendezvous>();
  const auto failures = run_ranks_catching(group, [](Communicator&) {});
  REQUIRE(failures[0]);
  INFO(failures[0]->text);
  CHECK((failures[0]->report.code == ErrorCode::aborted));  // else it waits for rank 1 until its deadline
  CHECK((failures[0]->text.find("another rank joins") != std::string::npos));
}
