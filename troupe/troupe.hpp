#pragma once
// Everything that a training program needs. By subject: the headers beside this one.
// LibTorch defines a CHECK, too: after this header CHECK is as it was before, for Catch2's.
#pragma push_macro("CHECK")
#undef CHECK
#include "troupe/checkpoints.hpp"
#include "troupe/communicators.hpp"
#include "troupe/compiled.hpp"
#include "troupe/data.hpp"
#include "troupe/layers.hpp"
#include "troupe/optimizers.hpp"
#include "troupe/strategies.hpp"
#include "troupe/train.hpp"
#pragma pop_macro("CHECK")
