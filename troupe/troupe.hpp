#pragma once
// Everything that a training program needs. By subject: the headers beside this one.
#include "troupe/checkpoints.hpp"
#include "troupe/communicators.hpp"
#include "troupe/data.hpp"
#include "troupe/layers.hpp"
#include "troupe/optimizers.hpp"
#include "troupe/strategies.hpp"
#include "troupe/train.hpp"
