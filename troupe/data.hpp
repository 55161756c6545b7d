#pragma once
// Data sets: your own, those that come with Troupe, and the collation of samples into a batch.
#include "tensor_io/data/bad_samples.hpp"
#include "tensor_io/data/collate.hpp"
#include "tensor_io/data/dataset.hpp"
#include "tensor_io/data/dataset_registry.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/data/token_dataset.hpp"
