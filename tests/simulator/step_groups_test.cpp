// Two groups of ranks that step apart, with one rank in both: the protocol of each, the coordinator's plan, deaths at
// any point. No messages: what a rank may do next is drawn.
#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>

#include "actors/coordinator/membership_plan.hpp"
#include "actors/step/step_protocol.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

constexpr std::int64_t kSteps = 12;

// A rank's part in one group: the protocol, and a log in the place of weights.
struct Part {
  explicit Part(ProcessId process) : protocol(process) {}
  StepProtocol protocol;
  std::vector<std::string> applied;  // by step: the group's votes
  bool has_votes = false;
  std::string votes;
};

struct Group {
  Membership now;
  std::map<int, Part> parts;                    // by slot
  std::map<std::int64_t, std::set<int>> voted;  // slots, by step
  std::map<std::int64_t, std::string> committed;
};

class TwoGroups {
 public:
  explicit TwoGroups(std::uint64_t seed) : random_(seed) {
    start(groups_[0], {0, 1, 2});
    start(groups_[1], {2, 3, 4});
  }

  void run(int deaths) {
    for (int turn = 0; turn < 100'000 && !over(); ++turn) {
      if (deaths > 0 && draw(40) == 0) {
        kill(static_cast<int>(draw(5)));
        --deaths;
      }
      auto& group = groups_[draw(2)];
      auto part = std::next(group.parts.begin(), static_cast<std::ptrdiff_t>(draw(group.parts.size())));
      go_on(group, part->first, part->second);
    }
    REQUIRE(over());
    for (const auto& group : groups_) {
      for (const auto& [slot, part] : group.parts) {
        CHECK(part.applied.size() == static_cast<std::size_t>(kSteps));
        CHECK(part.applied == group.parts.begin()->second.applied);
      }
    }
  }

 private:
  std::size_t draw(std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_); }

  void start(Group& group, const std::vector<int>& slots) {
    Membership first;
    first.generation = 1;
    for (const int slot : slots) {
      first.members.push_back({lives_[slot] = ProcessId{slot, 1}, "host", false});
      group.parts.emplace(slot, Part(lives_[slot]));
    }
    enter(group, first);
  }

  void enter(Group& group, const Membership& next) {
    group.now = next;
    group.voted.clear();
    std::vector<std::string> given;
    for (auto& [slot, part] : group.parts) {
      part.protocol.join(group.now);
      part.has_votes = false;
      if (part.protocol.whole()) given = part.applied;
    }
    for (auto& [slot, part] : group.parts) {
      if (part.protocol.must_heal()) {
        if (!part.protocol.whole()) part.applied = given;
        part.protocol.healed();
      }
      part.protocol.became_distributed();
      if (part.protocol.must_settle_optimizer()) part.protocol.settled_optimizer();
    }
  }

  void go_on(Group& group, int slot, Part& part) {
    if (part.protocol.steps_done() >= kSteps) return;
    auto& voted = group.voted[part.protocol.steps_done()];
    if (voted.insert(slot).second) return part.protocol.vote();
    if (part.has_votes) {  // perhaps long before others have them
      commit(group, part, part.votes);
      part.has_votes = false;
    } else if (voted.size() == group.parts.size()) {
      part.votes = std::to_string(part.protocol.steps_done()) + " by " + std::to_string(group.now.generation);
      part.protocol.votes_came(part.votes);
      part.has_votes = true;
    }
  }

  static void commit(Group& group, Part& part, const std::string& votes) {
    const auto step = part.protocol.steps_done();
    const auto known = group.committed.emplace(step, votes).first;
    CHECK(known->second == votes);  // one outcome of a step, whoever commits it
    part.applied.push_back(votes);
    part.protocol.end_step();
  }

  void kill(int slot) {
    const auto dead = lives_[slot];
    lives_[slot] = {slot, dead.incarnation + 1};
    for (auto& group : groups_) {
      const auto before = group.now.generation;
      if (group.now.rank_of(dead) >= 0) replace(group, dead);
      CHECK((group.now.generation == before) == (!group.parts.contains(slot)));  // others go on undisturbed
    }
  }

  void replace(Group& group, const ProcessId& dead) {
    group.parts.erase(dead.slot);
    std::int64_t done = 0;
    for (const auto& [slot, part] : group.parts) done = std::max(done, part.protocol.steps_done());
    group.committed.erase(group.committed.lower_bound(done), group.committed.end());  // by the dead alone
    MembershipQuestion question;
    question.world_size = group.now.world_size();
    question.current.generation = group.now.generation;
    question.current.members = group.now.members;
    for (auto& [slot, part] : group.parts) {
      question.survivors.push_back(
          {{lives_[slot], "host", false}, part.protocol.interruption({ErrorCode::peer_lost, -1, {}, -1, {}, "", {}})});
    }
    question.candidates.push_back({lives_[dead.slot], "host", false});
    const auto answer = plan_membership(question);
    REQUIRE((answer.action == MembershipAnswer::Action::go));
    for (auto& [slot, part] : group.parts) {
      if (part.protocol.leave_for(answer.next, true) == Rejoin::commit) commit(group, part, answer.next.votes);
    }
    group.parts.emplace(dead.slot, Part(lives_[dead.slot]));
    enter(group, answer.next);
  }

  bool over() const {
    return std::all_of(groups_.begin(), groups_.end(), [](const Group& group) {
      return std::all_of(group.parts.begin(), group.parts.end(),
                         [](const auto& part) { return part.second.protocol.steps_done() >= kSteps; });
    });
  }

  std::mt19937_64 random_;
  std::map<int, ProcessId> lives_;  // by slot
  std::array<Group, 2> groups_;
};

}  // namespace

TEST_CASE("[L06] a death ends the generation of the groups that the process is in, and of no others") {
  for (std::uint64_t seed = 0; seed < 2'000; ++seed) {
    INFO("seed " << seed);
    TwoGroups job(seed);
    job.run(static_cast<int>(seed % 8));
  }
}
