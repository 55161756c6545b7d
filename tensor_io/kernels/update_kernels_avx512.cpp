#define TROUPE_KERNELS kernels_avx512
#include "tensor_io/kernels/update_kernels.inc"
