#include "tensor_io/optimizer.hpp"

#include "tensor_io/error.hpp"

namespace troupe {

void Optimizer::replace_parameters(const Replacement&) {
  throw Error(ErrorCode::usage, "optimizer", name() + " updates whole parameters only, and this strategy gives each rank a slice of them",
              "override Optimizer::replace_parameters, or use ddp");
}

}  // namespace troupe
