#include "tensor_io/base/random_seed.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace troupe {

void seed_generator(std::uint64_t seed, std::initializer_list<std::uint64_t> parts, c10::Device device) {
  if (!device.is_cpu()) {
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
