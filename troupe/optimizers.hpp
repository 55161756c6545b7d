#pragma once
// The optimizer that the config names, and your own.
#include "launch/model/parameter_rules.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tensor_io/optimizer/optimizer.hpp"
