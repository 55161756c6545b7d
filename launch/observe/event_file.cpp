#include "launch/observe/event_file.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>

#include <protozero/pbf_writer.hpp>

namespace troupe {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
enum Event { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum Summary { kValue = 1, kTag = 1, kSimpleValue = 2 };
enum SessionLog { kStatus = 1, kStart = 1 };

constexpr auto kTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}();

template <class T>
void put(std::string& bytes, T value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  bytes.append(raw, sizeof value);
}

void put_checksum(std::string& bytes, std::string_view of) { put(bytes, std::rotr(crc32c(of), 15) + 0xa282ead8u); }

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string file_name() {
  static std::atomic<int> number{0};
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  return "events.out.tfevents." + std::to_string(static_cast<std::int64_t>(now())) + "." + host + "." +
         std::to_string(::getpid()) + "." + std::to_string(number++);
}

std::string version_event() {
  std::string bytes;
  protozero::pbf_writer event(bytes);
  event.add_double(kWallTime, now());
  event.add_string(kFileVersion, "brain.Event:2");
  return bytes;
}

// TensorBoard drops what it knows from this step on.
std::string start_event(const MetricRecord& record) {
  std::string bytes;
  protozero::pbf_writer event(bytes);
  event.add_double(kWallTime, record.wall_time);
  event.add_int64(kStep, record.step + 1);
  protozero::pbf_writer log(event, kSessionLog);
  log.add_enum(kStatus, kStart);
  return bytes;
}

std::string scalars_event(const MetricRecord& record) {
  std::string bytes;
  protozero::pbf_writer event(bytes);
  event.add_double(kWallTime, record.wall_time);
  event.add_int64(kStep, record.step);
  protozero::pbf_writer summary(event, kSummary);
  const auto add = [&](const std::string& tag, double number) {
    protozero::pbf_writer value(summary, kValue);
    value.add_string(kTag, tag);
    value.add_float(kSimpleValue, static_cast<float>(number));
  };
  for (const auto& [metric, number] : record.values) add(metric->name, number);
  for (const auto& [name, number] : record.own) add(name, number);
  return bytes;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint8_t>(byte)) & 0xff];
  return ~crc;
}

std::string tf_record(std::string_view payload) {
  std::string bytes;
  put(bytes, static_cast<std::uint64_t>(payload.size()));
  put_checksum(bytes, bytes);
  bytes.append(payload);
  put_checksum(bytes, payload);
  return bytes;
}

EventFile::EventFile(const std::string& folder) : file_(folder + "/" + file_name()) {}

void EventFile::write(const MetricRecord& record) {
  if (record.values.empty() && record.kind != MetricRecord::Kind::start) return;
  std::string bytes;
  if (!begun_) bytes = tf_record(version_event());
  bytes += tf_record(record.kind == MetricRecord::Kind::start ? start_event(record) : scalars_event(record));
  file_.append(bytes);
  begun_ = true;
}

}  // namespace troupe
