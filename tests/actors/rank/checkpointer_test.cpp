#include "actors/rank/checkpointer.hpp"

#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <semaphore>
#include <thread>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tests/catch.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/training_state.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

// A rank with nothing but a checkpointer; the test is its compute actor and its supervisor.
struct Fixture {
  ScratchDirectory scratch;
  caf::actor_system_config config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};

  Checkpointer start(const std::string& directory, FileLayer* files = nullptr, bool publishes = true) {
    return system.spawn<caf::detached>(
        make_checkpointer,
        CheckpointerOptions{directory, 3, 1, publishes, attempt(10), caf::actor_cast<caf::actor>(self), files});
  }
  void save(const Checkpointer& checkpointer, const CheckpointPart& part, bool best = false, std::size_t live = 0) {
    self->send(checkpointer, SaveCheckpoint{std::make_shared<CheckpointPart>(part), attempt(part.step), 1, best, live});
  }
  void save(const Checkpointer& checkpointer, std::int64_t step, bool best = false) {
    save(checkpointer, part_of(small_state(step, 1), 0), best);
  }
  static SaveAttempt attempt(std::int64_t step) { return {step, "a-" + std::to_string(step)}; }

  template <class Message>
  Message wait_for() {
    Message received;
    self->receive([&](const Message& message) { received = message; },
                  caf::after(20s) >> [] { FAIL("no message came"); });
    return received;
  }
  void wait_for_end(const Checkpointer& checkpointer) { self->wait_for(checkpointer); }
};

// A disk whose first fsync waits for the test.
class SlowFiles final : public FileLayer {
 public:
  std::binary_semaphore reached{0}, go_on{0};
  int sync(int fd) override {
    if (!first_.exchange(false)) return FileLayer::sync(fd);
    reached.release();
    if (!go_on.try_acquire_for(20s)) return -1;
    return FileLayer::sync(fd);
  }

 private:
  std::atomic<bool> first_{true};
};

}  // namespace

TEST_CASE("[C01] the checkpointer saves what it is sent and answers the sender") {
  Fixture rank;
  const auto checkpointer = rank.start(rank.scratch / "checkpoints");
  rank.save(checkpointer, 10);
  const auto saved = rank.wait_for<CheckpointSaved>();
  CHECK(saved.step == 10);
  CHECK(saved.path == rank.scratch / "checkpoints/step-00000010");
  CHECK(saved.bytes > 1000);
  CHECK(saved.seconds > 0);
  CHECK(equal(load_checkpoint(rank.scratch / "checkpoints", "latest").state, small_state(10, 1)));
  rank.save(checkpointer, 20, true);
  rank.wait_for<CheckpointSaved>();
  rank.save(checkpointer, 30);
  rank.wait_for<CheckpointSaved>();
  CHECK(load_checkpoint(rank.scratch / "checkpoints", "best").state.step == 20);
  CHECK(load_checkpoint(rank.scratch / "checkpoints", "latest").state.step == 30);
  caf::anon_send_exit(checkpointer, caf::exit_reason::user_shutdown);
  rank.wait_for_end(checkpointer);
}

TEST_CASE("[C03] fault 26: a save that fails is answered with rank, step and file, and the next one works") {
  Fixture rank;
  FaultyFiles files(FaultyFiles::Fault::refuse_once, 6, ENOSPC);
  const auto checkpointer = rank.start(rank.scratch.path(), &files);
  rank.save(checkpointer, 10);
  const auto failed = rank.wait_for<CheckpointFailed>();
  CHECK(failed.step == 10);
  CHECK(failed.report.code == ErrorCode::io);
  CHECK_THAT(failed.report.to_string(),
             Contains("rank 1, checkpointer, step 10") && Contains(rank.scratch.path()) && Contains("No space left"));
  rank.save(checkpointer, 11);
  CHECK(rank.wait_for<CheckpointSaved>().step == 11);
  caf::anon_send_exit(checkpointer, caf::exit_reason::user_shutdown);
  rank.wait_for_end(checkpointer);
}

TEST_CASE("[C01] a checkpointer asked to end finishes the write under way and those sent before") {
  Fixture rank;
  SlowFiles files;
  const auto checkpointer = rank.start(rank.scratch.path(), &files);
  rank.save(checkpointer, 10);
  REQUIRE(files.reached.try_acquire_for(20s));
  rank.save(checkpointer, 20);  // without waiting: more than its credit
  caf::anon_send_exit(checkpointer, caf::exit_reason::user_shutdown);
  files.go_on.release();
  CHECK(rank.wait_for<CheckpointSaved>().step == 10);
  CHECK(rank.wait_for<CheckpointSaved>().step == 20);
  rank.wait_for_end(checkpointer);
  CHECK(load_checkpoint(rank.scratch.path(), "latest").state.step == 20);
}

TEST_CASE("a checkpoint directory that cannot be used ends the rank at once") {
  Fixture rank;
  write_text(rank.scratch / "file", "x");
  const auto checkpointer = rank.start(rank.scratch / "file");
  const auto failed = rank.wait_for<RankFailed>();
  CHECK_THAT(failed.report.to_string(), Contains("rank 1, checkpointer") && Contains(rank.scratch / "file"));
  rank.save(checkpointer, 10);
  CHECK(rank.wait_for<CheckpointFailed>().step == 10);
  caf::anon_send_exit(checkpointer, caf::exit_reason::user_shutdown);
  rank.wait_for_end(checkpointer);
}

TEST_CASE("a state that can never be written is answered and reported to the supervisor") {
  Fixture rank;
  const auto checkpointer = rank.start(rank.scratch.path());
  auto part = part_of(small_state(10, 1), 0);
  part.tensors.push_back(whole_part("model.complex", torch::zeros(2, torch::kComplexDouble)));
  rank.save(checkpointer, part);
  CHECK_THAT(rank.wait_for<CheckpointFailed>().report.to_string(), Contains("'model.complex'"));
  CHECK_THAT(rank.wait_for<RankFailed>().report.to_string(), Contains("'model.complex'") && Contains("step 10"));
  caf::anon_send_exit(checkpointer, caf::exit_reason::user_shutdown);
  rank.wait_for_end(checkpointer);
}

TEST_CASE("[C02] two ranks save: parts first, then one of them makes the checkpoint, and both hear of it") {
  Fixture job;
  const auto first = job.start(job.scratch.path()), second = job.start(job.scratch.path(), nullptr, false);
  const auto state = small_state(10);
  job.save(first, part_of(state, 0), true);
  job.save(second, part_of(state, 1), true);
  for (int i = 0; i < 2; ++i) {
    const auto part = job.wait_for<PartSaved>();
    CHECK(part.report.code == ErrorCode::ok);
    CHECK((part.attempt == job.attempt(10) && part.ranks == 2 && part.best));
  }
  CHECK_THROWS_WITH(load_checkpoint(job.scratch.path(), "latest"), Contains("there is no checkpoint"));
  const bool by_second = GENERATE(false, true);
  if (by_second) caf::anon_send_exit(first, caf::exit_reason::kill), job.wait_for_end(first);
  job.self->send(by_second ? second : first, PublishCheckpoint{job.attempt(10), 2, true});
  const auto published = job.wait_for<CheckpointPublished>();
  CHECK(published.ended.report.code == ErrorCode::ok);
  CHECK(equal(load_checkpoint(job.scratch.path(), "best").state, state));
  if (by_second) {  // whose place a new process takes: the directory is its own again
    const auto successor = job.start(job.scratch.path());
    job.save(successor, part_of(small_state(20, 1), 0));
    CHECK(job.wait_for<CheckpointSaved>().step == 20);
    caf::anon_send_exit(successor, caf::exit_reason::user_shutdown);
    job.wait_for_end(successor);
  }
  for (const auto& checkpointer : {first, second}) {
    if (by_second && checkpointer == first) continue;
    job.self->send(checkpointer, SaveEnded{job.attempt(9), {}, {}});  // another one's
    job.self->send(checkpointer, published.ended);
    CHECK(job.wait_for<CheckpointSaved>().path == job.scratch / "step-00000010");
    caf::anon_send_exit(checkpointer, caf::exit_reason::user_shutdown);
    job.wait_for_end(checkpointer);
  }
}

TEST_CASE("[C02] a part that cannot be written fails the save on all ranks, and nothing stays") {
  Fixture job;
  FaultyFiles files(FaultyFiles::Fault::refuse_once, 4, ENOSPC);
  const auto first = job.start(job.scratch.path()), second = job.start(job.scratch.path(), &files, false);
  job.save(first, part_of(small_state(10), 0));
  CHECK(job.wait_for<PartSaved>().report.code == ErrorCode::ok);
  job.save(second, part_of(small_state(10), 1));
  const auto failed = job.wait_for<PartSaved>();
  CHECK(failed.report.code == ErrorCode::io);
  CHECK_THAT(failed.report.to_string(), Contains("No space left") && Contains("rank-00001"));
  for (const auto& checkpointer : {second, first}) {
    job.self->send(checkpointer, SaveEnded{job.attempt(10), {}, failed.report});
    CHECK(job.wait_for<CheckpointFailed>().step == 10);
    caf::anon_send_exit(checkpointer, caf::exit_reason::user_shutdown);
    job.wait_for_end(checkpointer);
  }
  CHECK(std::filesystem::is_empty(job.scratch.path()));
}

TEST_CASE("[C02] of a save whose rank 0 ends before it is published another rank makes a checkpoint") {
  Fixture job;
  const auto first = job.start(job.scratch.path()), second = job.start(job.scratch.path(), nullptr, false);
  for (const int rank : {0, 1}) {
    job.save(rank == 0 ? first : second, part_of(small_state(10), rank));
    CHECK(job.wait_for<PartSaved>().report.code == ErrorCode::ok);
  }
  job.self->send(first, CheckpointFailed{9, {.code = ErrorCode::device_lost}});  // another one's
  job.self->send(first, CheckpointFailed{10, {.code = ErrorCode::device_lost}});
  CHECK(job.wait_for<CheckpointFailed>().step == 10);
  caf::anon_send_exit(first, caf::exit_reason::user_shutdown);
  job.wait_for_end(first);
  job.self->send(second, PublishCheckpoint{job.attempt(10), 2, false});
  CHECK(job.wait_for<CheckpointPublished>().ended.saved.path == job.scratch / "step-00000010");
  caf::anon_send_exit(second, caf::exit_reason::user_shutdown);
  job.wait_for_end(second);
}

TEST_CASE("[C02] no rank writes its part into another folder of the name that its own had") {
  Fixture job;
  const auto here = job.scratch / "c";
  const auto first = job.start(here), second = job.start(here, nullptr, false);
  const auto save = [&](std::int64_t step) {
    std::vector<ErrorReport> reports;
    for (const int rank : {0, 1}) {
      job.save(rank == 0 ? first : second, part_of(small_state(step), rank));
      reports.push_back(job.wait_for<PartSaved>().report);
    }
    return reports;
  };
  for (const auto& report : save(10)) CHECK(report.code == ErrorCode::ok);
  std::filesystem::rename(here, job.scratch / "moved");
  std::filesystem::create_directory(here);
  for (const auto& report : save(20)) {
    CHECK(report.code == ErrorCode::io);
    CHECK_THAT(report.to_string(), Contains(here + " was moved or removed while the job ran"));
  }
  for (const auto& publisher : {first, second}) {
    job.self->send(publisher, PublishCheckpoint{job.attempt(10), 2, false});
    CHECK(job.wait_for<CheckpointPublished>().ended.report.code == ErrorCode::io);
  }
  CHECK(std::filesystem::is_empty(here));
  for (const auto& checkpointer : {first, second}) {
    caf::anon_send_exit(checkpointer, caf::exit_reason::user_shutdown);
    job.wait_for_end(checkpointer);
  }
}

TEST_CASE("[C02] live tensors are given back when they are written") {
  Fixture rank;
  const auto checkpointer = rank.start(rank.scratch.path());
  rank.save(checkpointer, part_of(small_state(10, 1), 0), false, 2);
  rank.wait_for<PartCopied>();
  CHECK(rank.wait_for<CheckpointSaved>().step == 10);
  caf::anon_send_exit(checkpointer, caf::exit_reason::user_shutdown);
  rank.wait_for_end(checkpointer);
}
