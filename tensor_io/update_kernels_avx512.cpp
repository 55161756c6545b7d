#define TROUPE_KERNELS kernels_avx512
#include "tensor_io/update_kernels.inc"
