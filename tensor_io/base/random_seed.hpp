#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <initializer_list>
#include <mutex>

#include "tensor_io/base/mix_seed.hpp"

namespace troupe {

/// Seeds LibTorch's CPU generator (one per process; thread-safe) with mix_seed, and that of `device` if it is a GPU.
void seed_generator(std::uint64_t seed, std::initializer_list<std::uint64_t> parts, c10::Device device = c10::kCPU);

/// The same for objects that a program builds before its first step: a model's first values. Ranks of one process share
/// the generator: while one keeps the returned lock, no other begins to build.
std::unique_lock<std::mutex> seed_model(std::uint64_t seed);

}  // namespace troupe
