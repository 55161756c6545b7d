#pragma once
#include <memory>

#include "tensor_io/device/device_graph.hpp"

namespace troupe {

/// LibTorch's CUDAGraph as a DeviceGraph.
std::unique_ptr<DeviceGraph> make_cuda_graph(c10::Device device);

}  // namespace troupe
