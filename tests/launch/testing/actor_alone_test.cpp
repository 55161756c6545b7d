// An actor by itself: what it answers and sends, and when.
#include "launch/testing/actor_alone.hpp"

#include "tests/catch.hpp"

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

struct Add {
  int number = 0;
};
struct Sum {
  int number = 0;
};
struct Again {};
struct Later {};
struct Fail {};
struct Quit {};

}  // namespace

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Add)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Sum)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Again)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Later)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Fail)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Quit)

namespace {

using Reader = caf::typed_actor<caf::reacts_to<Sum>>;
struct Report {
  Reader to;
  std::chrono::seconds every{1};
};

}  // namespace

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Report)

namespace {

// Adds up, and reports the sum from time to time.
using AddingActor =
    caf::typed_actor<caf::replies_to<Add>::with<Sum>, caf::reacts_to<Report>, caf::reacts_to<Again>,
                     caf::replies_to<Later>::with<Sum, bool>, caf::reacts_to<Fail>, caf::replies_to<Quit>::with<Sum>>;

AddingActor::behavior_type adding(AddingActor::pointer self) {
  auto sum = std::make_shared<int>(0);
  auto report = std::make_shared<Report>();
  return {[=](const Add& add) { return Sum{*sum += add.number}; },
          [=](const Report& wanted) {
            *report = wanted;
            self->delayed_send(self, report->every, Again{});
          },
          [=](const Again&) {
            self->send(report->to, Sum{*sum});
            self->delayed_send(self, report->every, Again{});
          },
          [=](const Later&) -> caf::result<Sum, bool> {
            if (*sum > 0) return {Sum{*sum}, true};
            return self->make_response_promise<Sum, bool>();
          },
          [](const Fail&) { throw std::runtime_error("it can't add"); },
          [=](const Quit&) {
            self->quit();
            return Sum{*sum};
          }};
}

}  // namespace

TEST_CASE("[U01] an actor alone answers what it is asked") {
  ActorAlone<AddingActor> alone(adding);
  CHECK(alone.ask(Add{2}).number == 2);
  CHECK(alone.ask(Add{3}).number == 5);
  const auto [sum, there] = alone.ask(Later{});
  CHECK((sum.number == 5 && there));
  CHECK(alone.ask(Quit{}).number == 5);
  CHECK(alone.ended());
  CHECK(alone.sent().empty());
}

TEST_CASE("[U01] an actor alone sends in virtual time, and no sooner") {
  ActorAlone<AddingActor> alone(adding);
  alone.send(Report{alone.peer<Reader>("reader"), 10s});
  alone.advance(9s);
  CHECK(alone.sent().empty());
  alone.advance(21s);
  REQUIRE(alone.sent().size() == 3);
  CHECK(alone.time() == 30s);
  alone.send(Add{7}, "writer");
  REQUIRE(alone.sent().size() == 4);
  CHECK(alone.sent()[3].to == "writer");
  CHECK(alone.sent()[3].as<Sum>().number == 7);
  alone.advance(1h);
  REQUIRE(alone.sent().size() == 364);
  CHECK(alone.sent()[2].at == 30s);
  CHECK(alone.sent()[2].to == "reader");
  CHECK(alone.sent()[2].type == "Sum");
  CHECK(alone.sent()[363].as<Sum>().number == 7);
  CHECK_THROWS_WITH(alone.sent()[0].as<Add>(), Catch::Contains("it was sent a Sum"));
}

TEST_CASE("[U01] an actor alone that throws or does not answer fails the question with the reason") {
  ActorAlone<AddingActor> alone(adding);
  CHECK_THROWS_WITH(alone.ask(Later{}), Catch::Contains("the actor has not answered"));
  CHECK_FALSE(alone.ended());
  alone.send(Fail{});
  CHECK(alone.ended());
  CHECK(alone.reason() == "it can't add");
  CHECK_THROWS_WITH(alone.ask(Add{1}), Catch::Contains("the actor has ended: it can't add"));
}

TEST_CASE("[U01] an actor alone can be made with the addresses of its peers") {
  using Pinging = caf::typed_actor<caf::reacts_to<Again>>;
  const auto pinging = [](Pinging::pointer self, ActorAlone<Pinging>& alone) {
    return Pinging::behavior_type{[self, to = alone.peer<Reader>("other")](const Again&) { self->send(to, Sum{1}); }};
  };
  ActorAlone<Pinging> alone(pinging);
  alone.send(Again{});
  REQUIRE(alone.sent().size() == 1);
  CHECK(alone.sent()[0].to == "other");
}
