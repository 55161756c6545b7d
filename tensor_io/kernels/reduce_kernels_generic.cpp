#define TROUPE_KERNELS kernels_generic
#include "tensor_io/kernels/reduce_kernels.inc"
