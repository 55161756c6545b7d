#pragma once
#include <cstdint>
#include <string>

namespace troupe {

/// The data to train on, and its batches.
struct DataOptions {
  std::string data = "synthetic";  ///< a name of known_datasets(): one that ships, or of register_dataset
  std::string data_dir;            ///< the file or folder of the data set; digits: empty finds the one that is shipped
  std::int64_t batch_size = 64;    ///< samples of one optimizer step, over all ranks and micro-batches
  std::int64_t num_workers = 1;    ///< loader threads of a rank; 0 loads in the loader's own thread
  std::int64_t prefetch = 2;       ///< batches that a loader may be ahead
  bool shuffle = true;
  std::int64_t shuffle_buffer = 1024;  ///< data read by shards: samples that are shuffled among themselves
  std::string on_bad_sample = "stop";  ///< a sample that cannot be read: stop, or skip
  bool drop_last = true;               ///< drop the last batch of an epoch if it is smaller
  bool augment = false;                ///< random crop and flip
  std::int64_t num_classes = 10;
  std::int64_t in_channels = 3;
  std::int64_t image_size = 32;
  std::int64_t synthetic_size = 50'000;
};

}  // namespace troupe
