#pragma once
// Reading checkpoints outside of training: for generation, evaluation, conversion.
#include "launch/model/load_weights.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/state_matching.hpp"
