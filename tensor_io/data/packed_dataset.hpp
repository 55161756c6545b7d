#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/data/data_options.hpp"
#include "tensor_io/data/dataset.hpp"
#include "tensor_io/data/dataset_registry.hpp"

namespace troupe {

/// Samples of any tensors, in safetensors files (docs/formats.md), as `troupe pack` writes them: each field of a file
/// has its samples along the first dimension. A sample is read by its offset. Data from a random augmentation was
/// packed several times: epoch e reads pass e modulo their number.
class PackedDataset final : public Dataset {
 public:
  struct Field {
    std::string name;
    at::ScalarType dtype = at::ScalarType::Float;
    std::vector<std::int64_t> sizes;  ///< of one sample
    std::size_t bytes = 0;            ///< of one sample
  };
  struct File {
    SafetensorsFile file;
    std::vector<std::uint64_t> begins;  ///< of each field
    std::int64_t first = 0;             ///< number of its first sample, over all passes
    std::int64_t samples = 0;
  };
  /// `files` hold `passes` times `size` samples, in order.
  PackedDataset(std::vector<Field> fields, std::vector<File> files, std::int64_t size, std::int64_t passes,
                std::uint64_t hash);

  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index, const SampleContext& context) const override;
  Batch get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const override;
  std::uint64_t files_hash() const override { return hash_; }
  std::string name() const override { return "packed"; }

 private:
  void read(std::int64_t index, const SampleContext& context, std::span<at::Tensor> rows) const;

  std::vector<Field> fields_;
  std::vector<File> files_;
  std::int64_t size_, passes_;
  std::uint64_t hash_;
};

/// The folder `data_dir`. Throws Error(unavailable) if it is missing, Error(bad_data) with file and field.
TrainAndHeldOut read_packed(const DataOptions& options);

}  // namespace troupe
