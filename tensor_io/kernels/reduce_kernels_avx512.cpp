#define TROUPE_KERNELS kernels_avx512
#include "tensor_io/kernels/reduce_kernels.inc"
