#include "tensor_io/communicator/choice/single_communicator.hpp"

#include <cstring>

namespace troupe {

void SingleCommunicator::copy(const at::Tensor& output, const at::Tensor& input) {
  if (!input.is_cpu()) {
    if (output.data_ptr() != input.data_ptr()) output.view(-1).copy_(input.view(-1));
    return;
  }
  if (input.nbytes() > 0 && output.data_ptr() != input.data_ptr())
    std::memcpy(output.data_ptr(), input.const_data_ptr(), input.nbytes());
}

}  // namespace troupe
