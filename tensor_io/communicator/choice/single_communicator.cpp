#include "tensor_io/communicator/choice/single_communicator.hpp"

#include <cstring>

namespace troupe {
namespace {

void copy_bytes(const at::Tensor& output, const at::Tensor& input) {
  if (!input.is_cpu()) {
    if (output.data_ptr() != input.data_ptr()) output.view(-1).copy_(input.view(-1));
    return;
  }
  if (input.nbytes() > 0 && output.data_ptr() != input.data_ptr())
    std::memcpy(output.data_ptr(), input.const_data_ptr(), input.nbytes());
}

}  // namespace

void SingleCommunicator::do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp,
                                           const CollectiveRecord&) {
  copy_bytes(output, input);
}
void SingleCommunicator::do_all_gather(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord&) {
  copy_bytes(output, input);
}
void SingleCommunicator::do_gather(const at::Tensor& output, const at::Tensor& input, int, const CollectiveRecord&) {
  copy_bytes(output, input);
}
void SingleCommunicator::do_scatter(const at::Tensor& output, const at::Tensor& input, int, const CollectiveRecord&) {
  copy_bytes(output, input);
}
void SingleCommunicator::do_all_to_all(const at::Tensor& output, const at::Tensor& input, const CollectiveRecord&) {
  copy_bytes(output, input);
}

}  // namespace troupe
