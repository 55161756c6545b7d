#define TROUPE_KERNELS kernels_generic
#include "tensor_io/reduce_kernels.inc"
