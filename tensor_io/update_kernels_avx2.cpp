#define TROUPE_KERNELS kernels_avx2
#include "tensor_io/update_kernels.inc"
