#define TROUPE_KERNELS kernels_avx2
#include "tensor_io/reduce_kernels.inc"
