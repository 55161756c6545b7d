#include "tensor_io/random_seed.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace troupe {

std::uint64_t mix_seed(std::uint64_t seed, std::initializer_list<std::uint64_t> parts) noexcept {
  const auto finalise = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  };
  std::uint64_t state = finalise(seed + 0x9e3779b97f4a7c15ull);
  for (const auto part : parts) state = finalise(state + 0x9e3779b97f4a7c15ull + part);
  return state;
}

void seed_generator(std::uint64_t seed, std::initializer_list<std::uint64_t> parts, c10::Device device) {
  if (device.is_cuda()) {
    auto on_device = at::globalContext().defaultGenerator(device);
    std::lock_guard lock(on_device.mutex());
    on_device.set_current_seed(mix_seed(seed, parts));
  }
  auto generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  generator.set_current_seed(mix_seed(seed, parts));
}

std::unique_lock<std::mutex> seed_model(std::uint64_t seed) {
  static std::mutex building;
  std::unique_lock lock(building);
  seed_generator(seed, {0x30de1});
  return lock;
}

}  // namespace troupe
