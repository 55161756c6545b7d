// A cluster whose network is cut, and whose messages are dropped, delayed and swapped.
#include <algorithm>

#include "examples/custom_strategy/gossip.hpp"
#include "launch/testing/cluster.hpp"
#include "launch/testing/message_faults.hpp"
#include "tests/catch.hpp"
#include "tests/launch/testing/points.hpp"

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

const Settings kTwelve{.max_steps = 12, .epochs = 4, .batch_size = 24};

const Settings kLong{.max_steps = 60, .epochs = 40, .batch_size = 24};

std::vector<SentMessage> messages_of(const TrainedRun& run, const std::string& from, const std::string& to,
                                     const std::string& type) {
  std::vector<SentMessage> found;
  std::copy_if(run.messages().begin(), run.messages().end(), std::back_inserter(found),
               [&](const auto& message) { return message.from == from && message.to == to && message.type == type; });
  return found;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

}  // namespace

TEST_CASE("[U01] a short cut between two hosts holds the job up, and changes nothing else") {
  Cluster cluster({.hosts = 2, .ranks_per_host = 2});
  const auto undisturbed = cluster.undisturbed(points(), kTwelve);
  cluster.cut(Host{0}, Host{1}, At{"collective", 9}, 2s);
  const auto run = cluster.train(points(), kTwelve);
  INFO(run.error() << text_of(run.coordinator_log()));
  CHECK(run.exit_code() == 0);
  CHECK(run.time() >= undisturbed.time() + 1s);
  CHECK(run.weights() == undisturbed.weights());
  CHECK(run.steps() == undisturbed.steps());
  CHECK(run.memberships().size() == 1);
  CHECK_THAT(text_of(run.coordinator_log()), Catch::Contains("rank 3 is silent") && Catch::Contains("answers again") &&
                                                 !Catch::Contains("rank 1 is silent"));
}

TEST_CASE("[U01] a cut between two hosts without the coordinator stops tensors, and no message") {
  Cluster cluster({.hosts = 3, .ranks_per_host = 1});
  const auto undisturbed = cluster.undisturbed(points(), kTwelve);
  cluster.cut(Host{2}, Host{1}, At{"forward", 5}, 5s);
  const auto run = cluster.train(points(), kTwelve);
  INFO(run.error() << text_of(run.coordinator_log()));
  CHECK(run.exit_code() == 0);
  CHECK(run.time() >= undisturbed.time() + 4s);
  CHECK_THAT(text_of(run.coordinator_log()), !Catch::Contains("silent"));
  CHECK(run.weights() == undisturbed.weights());
}

TEST_CASE("[U01] a cut that lasts loses the ranks beyond it, and replaces them when it is over") {
  Cluster cluster({.hosts = 2, .ranks_per_host = 2});
  cluster.cut(Host{1}, Host{0}, At{"collective", 6}, 8s);
  auto settings = kTwelve;
  settings.max_steps = 40;
  settings.epochs = 20;
  const auto run = cluster.slow(Rank{0}, Times{50}).train(points(), settings);
  INFO(run.error() << text_of(run.coordinator_log()));
  CHECK(run.exit_code() == 0);
  CHECK(run.steps().size() == 40);
  CHECK_THAT(text_of(run.coordinator_log()), Catch::Contains("silent for"));
  REQUIRE(run.memberships().size() > 1);
  CHECK(run.memberships().back().slots == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("[U01] a cut that outlasts every deadline ends the job with a verdict, or goes on with one side") {
  for (const std::string strategy : {"ddp", "fsdp"}) {
    Cluster cluster({.hosts = 2, .ranks_per_host = 2});
    cluster.cut(Host{0}, Host{1}, At{"collective", 6}, 300s);
    auto settings = kTwelve;
    settings.strategy = strategy;
    const auto run = cluster.train(points(), settings);
    INFO(strategy << ": " << run.exit_code() << " " << run.error() << text_of(run.coordinator_log()));
    CHECK((run.exit_code() == 0 || run.exit_code() == 75));
    CHECK((run.exit_code() == 0 || !run.error().empty()));
  }
}

TEST_CASE("[U01] of two ranks that only the coordinator reaches, one is left out") {
  Cluster cluster({.hosts = 3, .ranks_per_host = 1});
  cluster.cut(Host{1}, Host{2}, At{"collective", 6}, 400s);
  const auto run = cluster.train(points(), kTwelve);
  INFO(run.error() << text_of(run.coordinator_log()));
  CHECK(run.exit_code() == 0);
  CHECK(run.steps().size() == 12);
  REQUIRE(run.memberships().size() > 1);
  CHECK(run.memberships().back().slots.size() == 2);
  CHECK_THAT(text_of(run.coordinator_log()), Catch::Contains("can't reach each other"));
}

TEST_CASE("[U01] a rank beyond a link that stays cut comes back, is left out again, and the job goes on") {
  Cluster cluster({.hosts = 3, .ranks_per_host = 2});
  cluster.cut(Host{1}, Host{2}, At{"reduced", 6}, 400s).slow(Rank{0}, Times{100});
  const auto run = cluster.train(points(), kLong);
  INFO(run.error() << text_of(run.coordinator_log()));
  CHECK(run.exit_code() == 0);
  CHECK(run.steps().size() == 60);
}

TEST_CASE("[U01] ranks that were lost beyond a cut take part again when it is over") {
  Cluster cluster({.hosts = 3, .ranks_per_host = 2});
  cluster.cut(Host{0}, Host{1}, At{"reduced", 6}, 20s).slow(Rank{0}, Times{100});
  const auto run = cluster.train(points(), kLong);
  INFO(run.error() << text_of(run.coordinator_log()));
  CHECK(run.exit_code() == 0);
  REQUIRE(run.memberships().size() > 2);
  CHECK(run.memberships()[1].slots == std::vector<int>{0, 1, 4, 5});
  CHECK(run.memberships().back().slots.size() == 6);
}

TEST_CASE("[U01] ranks that park beyond a cut do not decide how the job ends") {
  Cluster cluster({.hosts = 3, .ranks_per_host = 2});
  cluster.cut(Host{0}, Host{1}, At{"reduced", 6}, 400s).slow(Rank{0}, Times{100});
  const auto run = cluster.train(points(), kLong);
  INFO(run.error() << text_of(run.coordinator_log()));
  CHECK(run.exit_code() == 0);
  CHECK(run.steps().size() == 60);
}

TEST_CASE("[U01] messages are written down in their order, with their types and times") {
  const auto run = Cluster({.hosts = 2, .ranks_per_host = 1}).train(points(), kTwelve);
  CHECK(messages_of(run, "rank 1", "coordinator", "JoinJob").size() == 1);
  CHECK(messages_of(run, "coordinator", "rank 1", "JoinAccepted").size() == 1);
  CHECK(messages_of(run, "coordinator", "rank 1", "Membership").size() == 1);
  CHECK(messages_of(run, "rank 0", "coordinator", "RankEnded").size() == 1);
  CHECK(messages_of(run, "coordinator", "rank 0", "bool").size() > 0);
  CHECK(messages_of(run, "host 1", "coordinator", "JoinNode").size() == 1);
  CHECK(messages_of(run, "coordinator", "host 1", "JobOver").size() == 1);
  CHECK(std::is_sorted(run.messages().begin(), run.messages().end(),
                       [](const auto& a, const auto& b) { return a.at < b.at; }));
  CHECK(run.messages().back().at <= run.time());
}

TEST_CASE("[U01] a dropped heartbeat changes nothing, and is written down as dropped") {
  Cluster cluster({.ranks_per_host = 2});
  cluster.slow(Rank{1}, Times{20});
  cluster.drop(Message{.from = Rank{1}, .type = "Heartbeat", .nth = 2});
  const auto run = cluster.train(points(), kTwelve);
  CHECK(run.exit_code() == 0);
  const auto beats = messages_of(run, "rank 1", "coordinator", "Heartbeat");
  REQUIRE(beats.size() > 3);
  CHECK((beats[2].dropped && !beats[1].dropped && !beats[3].dropped));
  CHECK(run.weights() == cluster.undisturbed(points(), kTwelve).weights());
}

TEST_CASE("[U01] a delayed message holds up what is sent behind it") {
  Cluster cluster({.ranks_per_host = 2});
  const auto undisturbed = cluster.undisturbed(points(), kTwelve);
  cluster.slow(Rank{1}, Times{30});
  cluster.delay(Message{.from = Rank{1}, .after = At{"vote", 2}}, 2s);
  const auto run = cluster.train(points(), kTwelve);
  CHECK(run.exit_code() == 0);
  CHECK_THAT(text_of(run.coordinator_log()), Catch::Contains("rank 1 is silent") && Catch::Contains("answers again"));
  CHECK(run.weights() == undisturbed.weights());
  cluster.clear().delay(Message{.to = Rank{1}, .type = "Membership"}, 3s);
  const auto late = cluster.train(points(), kTwelve);
  CHECK(late.exit_code() == 0);
  CHECK(late.time() >= undisturbed.time() + 2900ms);
}

TEST_CASE("[U01] a swapped message arrives behind the next one") {
  Cluster cluster({.ranks_per_host = 2});
  cluster.kill(Rank{0}, At{"vote", 4}).reorder(Message{.to = Rank{1}, .type = "InterruptRanks"});
  const auto run = cluster.train(points(), kTwelve);
  INFO(run.error() << text_of(run.coordinator_log()));
  CHECK(run.exit_code() == 0);
  CHECK(run.weights() == cluster.undisturbed(points(), kTwelve).weights());
}

TEST_CASE("[U01] a message of a strategy's own actor is dropped as any other") {
  register_gossip();
  Cluster cluster({.ranks_per_host = 2});
  auto settings = kTwelve;
  settings.strategy = "gossip";
  const auto undisturbed = cluster.undisturbed(points(), settings);
  const auto sent = messages_of(undisturbed, "rank 1", "rank 1's gossip", "Exchange");
  REQUIRE(sent.size() > 4);
  cluster.drop(Message{.from = Rank{1}, .type = "Exchange", .nth = 3});
  const auto run = cluster.train(points(), settings);
  INFO(run.error() << text_of(run.coordinator_log()));
  CHECK(run.exit_code() == 0);
  CHECK(run.memberships().size() > 1);
}

TEST_CASE("[U01] messages are hurt in parallel mode too, and a cut is refused there") {
  Cluster cluster({.hosts = 2, .ranks_per_host = 1, .parallel = true});
  cluster.reorder(Message{.from = Rank{1}, .type = "GetValue"});
  cluster.delay(Message{.to = Rank{0}, .type = "Membership"}, 20ms);
  const auto run = cluster.train(points(), kTwelve);
  CHECK(run.exit_code() == 0);
  CHECK(run.weights() == cluster.undisturbed(points(), kTwelve).weights());
  CHECK_THROWS_WITH(cluster.cut(Host{0}, Host{1}, At{"vote", 1}, 1s), Catch::Contains("sockets that are not cut"));
}

TEST_CASE("[U01] a network's fault that a cluster does not have, or that never comes, is refused by its name") {
  Cluster cluster({.hosts = 2, .ranks_per_host = 2});
  CHECK_THROWS_WITH(cluster.cut(Host{0}, Host{2}, At{"vote", 1}, 1s), Catch::Contains("Host{2}: the cluster has 2"));
  CHECK_THROWS_WITH(cluster.cut(Host{1}, Host{1}, At{"vote", 1}, 1s), Catch::Contains("Host{1} is one"));
  CHECK_THROWS_WITH(cluster.cut(Host{0}, Host{1}, At{"voet", 1}, 1s), Catch::Contains("'voet' is not a fault point"));
  CHECK_THROWS_WITH(cluster.drop(Message{.type = "Heartbeat"}), Catch::Contains("it says .from or .to"));
  CHECK_THROWS_WITH(cluster.drop(Message{.from = Rank{0}, .to = Rank{1}}),
                    Catch::Contains("no messages to each other"));
  CHECK_THROWS_WITH(cluster.drop(Message{.from = Rank{4}}), Catch::Contains("the cluster has 4 ranks"));
  CHECK_THROWS_WITH(cluster.drop(Message{.from = Rank{0}, .after = At{"voet", 1}}), Catch::Contains("'voet'"));
  CHECK_THROWS_WITH(cluster.drop(Message{.from = Rank{0}, .nth = -1}), Catch::Contains(".nth counts from 0"));
  cluster.drop(Message{.from = Rank{1}, .type = "Vote", .nth = 3});
  CHECK_THROWS_WITH(
      cluster.train(points(), kTwelve),
      Catch::Contains("cluster.drop(Message{.from = Rank{1}, .type = \"Vote\", .nth = 3});: it never came") &&
          Catch::Contains("those of rank 1 were") && Catch::Contains("Heartbeat"));
  cluster.clear().cut(Host{0}, Host{1}, At{"vote", 12}, 1s);
  CHECK_THROWS_WITH(cluster.train(points(), kTwelve), Catch::Contains("it never came"));
}

TEST_CASE("[U01] faults of the network are printed as the calls that plan them") {
  Cluster cluster({.hosts = 3});
  cluster.cut(Host{0}, Host{2}, At{"vote", 3, 1}, 1500ms)
      .drop(Message{.to = Rank{1}, .type = "Membership"})
      .delay(Message{.from = Rank{1}, .nth = 2, .after = At{"vote", 3}}, 200ms)
      .reorder(Message{.from = Rank{0}, .type = "RankEnded"});
  std::vector<std::string> lines;
  for (const auto& fault : cluster.faults()) lines.push_back(fault.to_code());
  CHECK(lines ==
        std::vector<std::string>{"cluster.cut(Host{0}, Host{2}, At{\"vote\", 3, 1}, 1500ms);",
                                 "cluster.drop(Message{.to = Rank{1}, .type = \"Membership\"});",
                                 "cluster.delay(Message{.from = Rank{1}, .nth = 2, .after = At{\"vote\", 3}}, 200ms);",
                                 "cluster.reorder(Message{.from = Rank{0}, .type = \"RankEnded\"});"});
}

TEST_CASE("[U01] a fault counts the messages that it chooses, from its place on") {
  using Kind = ClusterFault::Kind;
  MessageFaults faults({{.kind = Kind::kill, .at = {}},
                        {.kind = Kind::drop, .at = {}, .message = {.from = Rank{1}, .type = "A", .nth = 1}},
                        {.kind = Kind::delay, .at = {}, .message = {.to = Rank{1}, .after = At{"vote", 3}}}});
  CHECK_FALSE(faults.hit(1, {}, "A"));
  CHECK_FALSE(faults.hit(1, {}, "B"));
  CHECK_FALSE(faults.hit(2, {}, "A"));
  CHECK(faults.hit(1, {}, "A") == 1U);
  CHECK_FALSE(faults.hit(1, {}, "A"));
  CHECK_FALSE(faults.hit({}, 1, "A"));
  faults.begin(2);
  CHECK_FALSE(faults.hit(1, {}, "A"));
  CHECK(faults.hit({}, 1, "A") == 2U);
  CHECK_FALSE(faults.hit({}, 1, "A"));
}
