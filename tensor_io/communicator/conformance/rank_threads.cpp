#include "tensor_io/communicator/conformance/rank_threads.hpp"

#include <stdexcept>
#include <thread>

namespace troupe::conformance {

std::vector<std::optional<RankFailure>> run_rank_threads(int world_size, const MakeRank& make,
                                                         const std::function<void(Communicator&)>& body) {
  std::vector<std::optional<RankFailure>> failures(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(world_size));
  for (int r = 0; r < world_size; ++r) {
    threads.emplace_back([&, r] {
      auto& failure = failures[static_cast<std::size_t>(r)];
      const auto start = std::chrono::steady_clock::now();
      const auto after = [&] {
        return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
      };
      try {
        const auto communicator = make(r);
        body(*communicator);
      } catch (const Error& error) {
        failure = RankFailure{error.report(), error.what(), after()};
      } catch (const std::exception& error) {
        failure = RankFailure{ErrorReport{}, error.what(), after()};
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return failures;
}

void require(bool condition, const std::string& claim) {
  if (!condition) throw std::runtime_error("not true: " + claim);
}

}  // namespace troupe::conformance
