#include "tensor_io/communicator/clock_offset.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>

#include "tensor_io/base/steady_time.hpp"

namespace troupe {
namespace {

constexpr int kQuestions = 8;
constexpr std::string_view kLabel = "clock";

}  // namespace

ClockOffset offset_of(const std::vector<ClockSample>& samples, bool same_host) {
  if (samples.empty()) return {};
  const auto way = [](const ClockSample& s) { return s.answered_ns - s.asked_ns; };
  const auto best =
      *std::min_element(samples.begin(), samples.end(), [&](const auto& a, const auto& b) { return way(a) < way(b); });
  const ClockOffset measured{best.asked_ns + way(best) / 2 - best.remote_ns, way(best) / 2 + 1};
  if (same_host && std::abs(measured.offset_ns) <= measured.error_ns) return {};
  return measured;
}

std::vector<ClockOffset> measure_clocks(Communicator& communicator, const std::function<bool(int)>& same_host,
                                        const std::function<std::int64_t()>& clock) {
  const auto now = [&] { return clock ? clock() : steady_now_ns(); };
  const auto word = at::zeros({1}, at::kLong);
  const auto world = communicator.world_size();
  const auto offsets = at::zeros({world, 2}, at::kLong);
  if (communicator.rank() != 0) {
    for (int i = 0; i < kQuestions; ++i) {
      communicator.recv(word, 0, kLabel);
      word.fill_(now());
      communicator.send(word, 0, kLabel);
    }
  } else {
    for (int rank = 1; rank < world; ++rank) {
      std::vector<ClockSample> samples;
      for (int i = 0; i < kQuestions; ++i) {
        ClockSample sample;
        sample.asked_ns = now();
        communicator.send(word, rank, kLabel);
        communicator.recv(word, rank, kLabel);
        sample.answered_ns = now();
        sample.remote_ns = word.item<std::int64_t>();
        samples.push_back(sample);
      }
      const auto offset = offset_of(samples, same_host(rank));
      offsets[rank][0] = offset.offset_ns;
      offsets[rank][1] = offset.error_ns;
    }
  }
  communicator.broadcast(offsets, 0, kLabel);
  std::vector<ClockOffset> result;
  result.reserve(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank)
    result.push_back({offsets[rank][0].item<std::int64_t>(), offsets[rank][1].item<std::int64_t>()});
  return result;
}

}  // namespace troupe
