#define TROUPE_KERNELS kernels_avx2
#include "tensor_io/kernels/update_kernels.inc"
