#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "actors/metrics/metric_sink.hpp"
#include "launch/observe/append_file.hpp"

namespace troupe {

/// A TensorBoard event file, new for every life of rank 0: TFRecords of tensorflow.Event messages, with only the fields
/// that scalars need. Its start event makes TensorBoard forget the records of earlier files of the folder for steps
/// that come again.
class EventFile final : public MetricSink {
 public:
  /// `folder`/events.out.tfevents.SECONDS.HOST.PID.NUMBER, made at the first record.
  explicit EventFile(const std::string& folder);
  const char* name() const noexcept override { return "TensorBoard"; }
  void write(const MetricRecord& record) override;

 private:
  AppendFile file_;
  bool begun_ = false;
};

/// CRC-32C (Castagnoli), as in iSCSI and TFRecords.
std::uint32_t crc32c(std::string_view bytes) noexcept;
/// Length, masked checksum of the length, payload, masked checksum of the payload; little-endian.
std::string tf_record(std::string_view payload);

}  // namespace troupe
