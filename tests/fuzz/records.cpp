// What a run's folder holds, as report and top read it, and a rank 0 that takes over: metrics.jsonl and run.json.
#include "actors/metrics/metric.hpp"
#include "launch/observe/run_folder.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

// The first byte: even, the rest is metrics.jsonl; odd, run.json beside a good one.
TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  static const fuzz::InputFile metrics("metrics.jsonl");
  static const std::string good = [] {
    MetricRecord record;
    record.step = record.steps_from = 1;
    return to_json(record) + "\n";
  }();
  if (bytes < 1) return 0;
  const auto content = fuzz::text_of(data + 1, bytes - 1);
  const auto facts = metrics.folder() / "run.json";
  std::filesystem::remove(facts);
  const bool lines = data[0] % 2 == 0;
  metrics.write(lines ? content : std::string_view(good));
  if (!lines)
    std::ofstream(facts, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  return fuzz::try_input([&] {
    if (lines) (void)earlier_records(good, std::string(content));
    // What was read can be written, and is a record again.
    for (const auto& record : read_run(metrics.folder().string()).records) {
      if (record_from_json(to_json(record)).step < 0) std::abort();
    }
  });
}
