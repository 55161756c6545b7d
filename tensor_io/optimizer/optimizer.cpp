#include "tensor_io/optimizer/optimizer.hpp"

#include "tensor_io/base/error.hpp"

namespace troupe {

void Optimizer::step_unless(const at::Tensor&, double) {
  throw Error(ErrorCode::usage, "vote",
              "late: the optimizer " + name() + " must know on the host whether a step is applied",
              "use the framework's sgd or adamw (rank.make_optimizer), or leave vote at step");
}

std::vector<ElementState> Optimizer::elements(std::string& why_not) {
  why_not = "the optimizer " + name() + " updates whole parameters only";
  return {};
}

void Optimizer::replace_parameters(const Replacement&) {
  throw Error(ErrorCode::usage, "optimizer",
              name() + " updates whole parameters only, and this strategy gives each rank a slice of them",
              "override Optimizer::replace_parameters, or use ddp");
}

}  // namespace troupe
