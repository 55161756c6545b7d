#define TROUPE_KERNELS kernels_avx2
#include "tensor_io/kernels/reduce_kernels.inc"
