#pragma once
#include <memory>
#include <string>

#include "tensor_io/data/data_options.hpp"
#include "tensor_io/data/dataset.hpp"
#include "tensor_io/data/dataset_registry.hpp"

namespace troupe {

/// UCI handwritten digits (data/README.md), 8×8 unless image_size says otherwise: 1,438 to train, 359 held out.
TrainAndHeldOut read_digits(const DataOptions& options);
/// IDX files of MNIST or Fashion-MNIST in a folder, plain or .gz: train-images-idx3-ubyte …
TrainAndHeldOut read_mnist(const DataOptions& options);
/// data_batch_1.bin … data_batch_5.bin and test_batch.bin in a folder.
TrainAndHeldOut read_cifar10(const DataOptions& options);
/// A CSV file of numbers whose last column is the label; every fifth row is held out.
TrainAndHeldOut read_csv(const DataOptions& options);

/// Images made on the fly, a function of (seed, index): each class has its own pattern of waves, with noise. 1/10 more
/// of them are held out.
class SyntheticImages final : public Dataset {
 public:
  SyntheticImages(const DataOptions& options, std::uint64_t seed, std::int64_t first, std::int64_t size);
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index, const SampleContext& context) const override;
  std::string name() const override { return "synthetic"; }

 private:
  DataOptions options_;
  std::uint64_t seed_;
  std::int64_t first_, size_;
};

/// One IDX file of unsigned bytes. Throws Error(bad_data) naming file, offset and field.
at::Tensor read_idx(const std::string& path);

/// Rows of two tensors: input (N, …), target (N, …).
class TensorDataset final : public Dataset {
 public:
  TensorDataset(at::Tensor input, at::Tensor target, std::string name = "tensors");
  std::int64_t size() const override { return input_.size(0); }
  Example get(std::int64_t index, const SampleContext& context) const override;
  Batch get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const override;
  bool quick(std::int64_t samples) const override;
  std::string name() const override { return name_; }

 private:
  at::Tensor input_, target_;
  std::string name_;
};

}  // namespace troupe
