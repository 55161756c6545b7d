#include "actors/simulator/rank_model.hpp"

#include <algorithm>
#include <sstream>

#include "actors/recovery/heal.hpp"
#include "actors/simulator/checkpointer_model.hpp"
#include "actors/simulator/job.hpp"

namespace troupe::simulator {
namespace {

using namespace std::chrono_literals;

constexpr auto kProgram = ModelCollectives::kProgram, kBuckets = ModelCollectives::kBuckets;
const std::string kMembership = "a membership";
const std::string kOthersEnd = "the end of the other ranks' loops";

/// What stops waiting for a generation's addresses when it is over: the supervisor aborts it as it does the
/// communicators.
class ModelRendezvous final : public Rendezvous {
 public:
  explicit ModelRendezvous(std::function<void(const ErrorReport&)> aborted) : aborted_(std::move(aborted)) {}
  void put(const std::string&, std::string) override {}
  std::string get(const std::string&, std::chrono::milliseconds) override { return {}; }
  void abort(const ErrorReport& reason) noexcept override { aborted_(reason); }
  void throw_if_aborted(const std::string&) override {}  // nothing of the model waits

 private:
  std::function<void(const ErrorReport&)> aborted_;
};

std::string text(const ModelState& state, std::int64_t step) {
  return std::to_string(step) + " " + std::to_string(state.weights) + " " + std::to_string(state.moments);
}

std::int64_t parse(const std::string& bytes, ModelState& state) {
  std::istringstream in(bytes);
  std::int64_t step = 0;
  in >> step >> state.weights >> state.moments;
  return step;
}

}  // namespace

RankModel::RankModel(caf::event_based_actor* self, Job& job, RankProcess& process)
    : self_(self),
      job_(job),
      process_(process),
      draw_(job.options().seed, process.process->name),
      protocol_(process.id),
      waits_(self, job.world()),
      addresses_(self, job, process, waits_) {}

caf::behavior RankModel::make_behavior() {
  return {
      [this](const Membership& next) {
        memberships_.push_back(next);
        if (awaits_membership()) take_next();
      },
      [](const InterruptRanks&) {},  // its communicators are aborted, too
      [this](const AbortJob& job) { aborted(job); },
      [this](const CommunicatorsAborted& message) {
        if (!collectives_.abort(message.generation, message.reason)) return;
        job_.data().give_up(process_, membership_.generation);
        if (collectives_.under_way() || addresses_.under_way() || waits_.what() == kOthersEnd) leave(message.reason);
      },
      [this](const LeaveLoop& answer) {
        if (waits_.what() == kOthersEnd && protocol_.may_leave(answer)) end(report(ErrorCode::ok));
      },
      [this](const PeerGone& gone) { lost_peer(gone); },
      [this](const Piece& piece) {
        collectives_.add(piece);
        complete_if_all();
      },
      [this](const SaveAnswered& answer) {
        const auto then = saves_.end(answer);
        if (!then) return;
        waits_.came();
        then();
      },
      [this](const Continue& message) { waits_.take(message); },
  };
}

ErrorReport RankModel::report(ErrorCode code, std::string operation, std::string cause) const {
  return {code, rank(), "compute", steps_done(), std::move(operation), std::move(cause), {}};
}

// ---------------------------------------------------------------- waiting

void RankModel::give_up_waiting() {
  waits_.give_up();
  collectives_.give_up();
}

bool RankModel::awaits_membership() const { return waits_.what() == kMembership; }

bool RankModel::is_here(const char* point) { return job_.comes_to(process_, point, steps_done()); }

// ---------------------------------------------------------------- joining

void RankModel::begin(caf::actor checkpointer) {
  checkpointer_ = std::move(checkpointer);
  ask_to_join();
}

void RankModel::ask_to_join() {
  waits_.wait("its admission", 70s);
  self_->request(process_.supervisor, 60s, JoinRank{2s})
      .then(
          [this](const JoinAccepted& accepted) {
            waits_.came();
            if (!accepted.refused.empty())
              return end({ErrorCode::mismatch, rank(), "rank supervisor", -1, "join", accepted.refused, {}});
            await_membership();
          },
          [this](caf::error&) {
            if (!ending_) waits_.after(100ms, [this] { ask_to_join(); });
          });
}

// As Compute::await_membership: it alone takes memberships.
void RankModel::await_membership() {
  waits_.give_up();
  if (abort_) return end(abort_->report);
  waits_.wait(kMembership, protocol_.distributed() ? 2 * job_.options().collective_timeout + 65s : 3600s);
  while (awaits_membership() && !memberships_.empty()) take_next();
}

void RankModel::take_next() {
  const auto membership = std::move(memberships_.front());
  memberships_.pop_front();
  if (membership.generation <= membership_.generation || ending_) return;
  waits_.came();
  try {
    if (protocol_.distributed() && protocol_.leave_for(membership, true) == Rejoin::commit) {
      decide(decode_votes(membership.votes, 0), {}, {});
      commit();
    }
    protocol_.join(membership);
  } catch (const Error& error) {
    return end(error.report());
  }
  enter(membership);
}

void RankModel::enter(const Membership& next) {
  membership_ = next;
  job_.history().entered(process_.id, next.generation);
  process_.status->steps_done = steps_done();
  collectives_.enter(next, rank());
  caf::anon_send(process_.supervisor,
                 RegisterRendezvous{next.generation, std::make_shared<ModelRendezvous>(message_of_abort())});
  addresses_.begin(
      next, rank(), [this] { connected(); },
      [this](ErrorCode code, const std::string& operation, const std::string& cause) {
        leave(report(code, operation, cause));
      });
}

// The supervisor calls it within its own turn.
std::function<void(const ErrorReport&)> RankModel::message_of_abort() const {
  return [self = caf::actor_cast<caf::actor>(self_), generation = membership_.generation](const ErrorReport& reason) {
    caf::anon_send(self, CommunicatorsAborted{generation, reason});
  };
}

void RankModel::connected() {
  for (const auto& communicator : collectives_.connect(message_of_abort()))
    caf::anon_send(process_.supervisor,
                   RegisterCommunicator{communicator->name(), membership_.generation, communicator});
  collective(kProgram, "connect", {}, [this](const Pieces&) {
    if (protocol_.must_heal()) return heal();
    protocol_.became_distributed();
    go_on();
  });
}

// ---------------------------------------------------------------- state for newcomers

std::string RankModel::encoded_state() const { return text(state_, steps_done()); }

void RankModel::heal() {
  if (!is_here("heal")) return;
  collective(kProgram, "heal", encoded_state(), [this](const Pieces& pieces) {
    const auto roles = heal_roles(membership_);
    ModelState given;
    parse(pieces[static_cast<std::size_t>(roles.first_donor)], given);
    for (std::size_t r = 0; r < pieces.size(); ++r) {
      ModelState other;
      parse(pieces[r], other);
      if (roles.newcomer[r] || other.weights == given.weights) continue;
      auto wrong = report(ErrorCode::mismatch, "heal of model", "it holds different values from the others");
      wrong.rank = static_cast<int>(r);
      return end(wrong);
    }
    if (roles.newcomer[static_cast<std::size_t>(rank())]) state_.weights = given.weights;
    collective(kProgram, "healed", {}, [this](const Pieces&) {
      protocol_.healed();
      protocol_.became_distributed();
      go_on();
    });
  });
}

void RankModel::settle_optimizer(std::function<void()> then) {
  if (!protocol_.must_settle_optimizer()) return then();
  collective(kProgram, "optimizer", encoded_state(), [this, then = std::move(then)](const Pieces& pieces) {
    const auto roles = heal_roles(membership_);
    ModelState given;
    parse(pieces[static_cast<std::size_t>(roles.first_donor)], given);
    if (roles.newcomer[static_cast<std::size_t>(rank())]) {
      state_.moments = given.moments;
      job_.history().took_state(process_.id, steps_done(), state_);
    }
    protocol_.settled_optimizer();
    then();
  });
}

void RankModel::resume() {
  const auto* latest = job_.checkpoints().latest();
  std::string offer;
  if (rank() == 0 && latest != nullptr) offer = text(latest->parts.at(0).state, latest->step);
  collective(kProgram, "checkpoint", offer, [this](const Pieces& pieces) {
    collective(kProgram, "checkpoint", {}, [this, offer = pieces.front()](const Pieces&) {
      resumed_ = true;
      if (!offer.empty()) {
        protocol_.resumed(parse(offer, state_));
        process_.status->steps_done = steps_done();
        job_.history().took_state(process_.id, steps_done(), state_);
      }
      go_on();
    });
  });
}

// ---------------------------------------------------------------- the loop

void RankModel::go_on() {
  const auto& options = job_.options();
  if (job_.resumes() && steps_done() == 0 && !resumed_ && membership_.resume_step == 0) return resume();
  if (steps_done() > 0 && protocol_.task_due(0) && steps_done() % options.save_every == 0) {
    return save([this] {
      protocol_.task_done(0);
      go_on();
    });
  }
  if (steps_done() >= options.steps) return finish();
  step();
}

void RankModel::save(std::function<void()> then) {
  if (saves_.under_way()) return after_save([this, then = std::move(then)] { save(then); });
  settle_optimizer([this, then] {
    const auto id = saves_.next_id(job_.starts(), membership_.generation);
    collective(kProgram, "checkpoint", id, [this, then](const Pieces& pieces) {
      const SaveAttempt attempt{steps_done(), pieces.front()};
      protocol_.begins_save(attempt.id);
      saves_.begin(attempt);
      self_->send(checkpointer_,
                  SavePart{attempt, membership_.generation, rank(), membership_.world_size(), {steps_done(), state_}});
      if (is_here("save")) then();
    });
  });
}

// The coordinator says for which ranks a save waits.
void RankModel::after_save(std::function<void()> then) {
  waits_.wait("the end of a save", 180s);
  saves_.after_end(std::move(then));
}

void RankModel::finish() {
  if (saves_.under_way()) return after_save([this] { finish(); });
  collective(kProgram, "last checkpoint", saves_.lost() ? "-" : "+", [this](const Pieces& pieces) {
    saves_.forget_lost();
    if (std::find(pieces.begin(), pieces.end(), "-") != pieces.end()) return save([this] { finish(); });
    if (!is_here("end")) return;
    waits_.wait(kOthersEnd, job_.options().collective_timeout + 60s);
    caf::anon_send(process_.supervisor, protocol_.end_of_loop());
  });
}

void RankModel::step() {
  const auto work = std::chrono::microseconds(draw_.in(20'000, 60'000)) * (job_.is_slow(process_.id.slot) ? 10 : 1);
  collectives_.set_step(steps_done());
  if (!is_here("forward")) return;
  waits_.after(work, [this] {
    if (!job_.options().user_collectives) return reduce();
    const auto norm = [this](const Pieces&) { collective(kProgram, "norm", {}, [this](const Pieces&) { reduce(); }); };
    if (skip_at == steps_done()) return norm({});
    collective(kProgram, "mean", {}, norm);
  });
}

void RankModel::reduce() {
  const auto slice = slice_of(rank(), membership_.world_size());
  collective(kBuckets, "bucket 0", std::to_string(slice.first) + " " + std::to_string(slice.end),
             [this](const Pieces& all) { reduced(all); });
}

void RankModel::reduced(const Pieces& pieces) {
  slices_.clear();
  for (const auto& piece : pieces) {
    std::istringstream in(piece);
    Slice slice;
    in >> slice.first >> slice.end;
    slices_.push_back(slice);
  }
  if (!is_here("reduced")) return;
  settle_optimizer([this] { vote(); });
}

void RankModel::vote() {
  Vote mine;
  mine.step = steps_done();
  mine.samples = static_cast<double>(kGlobalBatch) / membership_.world_size();
  mine.stop_signal = process_.status->end_for_vote(membership_.generation);
  std::string bytes(vote_bytes(0), '\0');
  encode_vote(mine, {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()});
  if (!is_here("vote")) return;
  protocol_.vote();
  collective(kProgram, "vote", bytes, [this](const Pieces& pieces) {
    std::string votes;
    for (const auto& piece : pieces) votes += piece;
    protocol_.votes_came(votes);
    if (!is_here("voted")) return;
    std::vector<int> leaving;
    try {
      leaving = decide(decode_votes(votes, 0), {}, {}).leaving;
    } catch (const Error& error) {
      return end(error.report());
    }
    // The optimizer takes its time, and does not look up.
    waits_.after(std::chrono::microseconds(draw_.in(100, 3'000)), [this, leaving] {
      commit();
      if (is_here("committed")) leaving.empty() ? go_on() : part(leaving);
    });
  });
}

// Members leave.
void RankModel::part(const std::vector<int>& leaving) {
  collective(kProgram, "hand over", {}, [this, leaving](const Pieces&) {
    protocol_.part(leaving);
    leave(report(ErrorCode::aborted, {}, "members leave"));
  });
}

void RankModel::commit() {
  apply_step(state_, steps_done(), hash_of_samples(steps_done(), slices_));
  job_.history().applied(process_.id, membership_.generation, steps_done(), slices_, state_);
  protocol_.end_step();
  process_.status->steps_done = steps_done();
}

// ---------------------------------------------------------------- collectives

void RankModel::collective(std::size_t communicator, const std::string& label, std::string bytes,
                           std::function<void(const Pieces&)> then) {
  if (abort_) return end(abort_->report);
  if (collectives_.broken()) return leave(*collectives_.broken());
  CollectiveRecord record;
  record.kind = CollectiveKind::all_gather;
  record.numel = communicator == kBuckets && other_numel_at == steps_done() ? 2 : 1;
  record.step = steps_done();
  label.copy(record.label.data(), record.label.size() - 1);
  record.started_ns = job_.world().now().time_since_epoch().count();
  const auto mine = collectives_.begin(communicator, record, std::move(bytes), std::move(then));
  waits_.wait(label, job_.options().collective_timeout + 1s);
  for (int peer = 0; peer < membership_.world_size(); ++peer) {
    if (peer != rank()) job_.data().send(process_, mine, peer);
  }
  waits_.after(job_.options().collective_timeout, [this, label] {
    std::string missing;
    for (const int r : collectives_.missing()) missing += " " + std::to_string(r);
    leave({ErrorCode::timeout, rank(), "reducer", steps_done(), label, "no word from" + missing, {}});
  });
  complete_if_all();
}

void RankModel::lost_peer(const PeerGone& gone) {
  auto why = report(ErrorCode::peer_lost, {}, "rank " + std::to_string(gone.rank) + " closed its connection");
  if (!collectives_.lose_peer(gone.generation, why)) return;
  // One that has given its piece of this collective may go: the next collective fails.
  const auto missing = collectives_.missing();
  if (addresses_.under_way() || std::find(missing.begin(), missing.end(), gone.rank) != missing.end()) leave(why);
}

void RankModel::complete_if_all() {
  const auto then = collectives_.complete();
  if (!then) return;
  give_up_waiting();
  then();
}

// ---------------------------------------------------------------- the ends of a generation, and of the rank

void RankModel::leave(const ErrorReport& why) {
  give_up_waiting();
  saves_.give_up_waiting();
  job_.data().give_up(process_, membership_.generation);
  if (abort_) return end(abort_->report);
  if (!may_be_recovered(why.code)) return end(why);
  caf::anon_send(process_.supervisor, protocol_.interruption(why));
  await_membership();
}

void RankModel::aborted(const AbortJob& job) {
  if (ending_ || abort_) return;
  abort_ = job;
  // In forward or in the optimizer it looks up later.
  if (!waits_.what().empty()) end(job.report);
}

// As RankSystem::fail and finish, and a parked rank's last save.
void RankModel::end(const ErrorReport& report) {
  if (ending_) return;
  ending_ = true;
  give_up_waiting();
  saves_.give_up_waiting();
  job_.data().give_up(process_, membership_.generation);
  process_.status->loop_ended = true;
  if (report.code == ErrorCode::parked && report.rank == rank() && protocol_.distributed() && protocol_.whole())
    job_.checkpoints().save_alone(steps_done(), state_, *process_.process);
  if (report.code != ErrorCode::ok && !abort_) caf::anon_send(process_.supervisor, RankFailed{report});
  const auto code = exit_code(report.code);
  waits_.wait("the coordinator's word", 61s);
  self_->request(process_.supervisor, caf::infinite, FinishRank{report})
      .then([this, code](bool) { job_.exit_rank(process_, code); },
            [this, code](caf::error&) { job_.exit_rank(process_, code); });
}

}  // namespace troupe::simulator
