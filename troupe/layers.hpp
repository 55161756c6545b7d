#pragma once
// Layers that replace LibTorch's, and Troupe's changes to a model: blocks, deferred initialisation, recomputed
// activations, batch norm over all ranks.
#include "actors/block/activation_checkpointing.hpp"
#include "actors/block/block.hpp"
#include "actors/block/wrap_policy.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "tensor_io/layers/deferred_init.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tensor_io/layers/parallel_layers.hpp"
