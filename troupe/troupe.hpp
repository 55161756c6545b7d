#pragma once
// Everything that a training program needs.
#include "actors/activation_checkpointing.hpp"
#include "actors/block.hpp"
#include "actors/strategy.hpp"
#include "actors/wrap_policy.hpp"
#include "launch/config.hpp"
#include "launch/job.hpp"
#include "launch/rank.hpp"
#include "strategies/sync_batch_norm.hpp"
#include "tensor_io/communicator.hpp"
#include "tensor_io/dataset.hpp"
#include "tensor_io/dropout.hpp"
#include "tensor_io/optimizer.hpp"
