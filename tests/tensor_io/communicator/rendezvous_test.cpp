#include "tensor_io/communicator/rendezvous.hpp"

#include <thread>

#include "tests/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

TEST_CASE("a rendezvous hands a value to a rank that waits for it") {
  LocalRendezvous rendezvous;
  std::string seen;
  std::thread reader([&] { seen = rendezvous.get("world/0/address", 5s); });
  rendezvous.put("world/0/address", "here");
  reader.join();
  CHECK(seen == "here");
}

TEST_CASE("a rendezvous that nobody answers names the key") {
  LocalRendezvous rendezvous;
  CHECK_THROWS_WITH(rendezvous.get("world/1/address", 1ms), Catch::Contains("world/1/address"));
}

TEST_CASE("an aborted rendezvous frees its waiters with the first reason") {
  LocalRendezvous rendezvous;
  std::string what;
  std::thread reader([&] {
    try {
      rendezvous.get("never", 60s);
    } catch (const Error& error) {
      what = error.what();
    }
  });
  rendezvous.abort({ErrorCode::peer_lost, 1, {}, -1, {}, "rank 1 died", {}});
  rendezvous.abort({ErrorCode::peer_lost, 2, {}, -1, {}, "rank 2 died", {}});
  reader.join();
  CHECK_THAT(what, Catch::Contains("rank 1 died"));
}
