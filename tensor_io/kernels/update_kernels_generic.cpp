#define TROUPE_KERNELS kernels_generic
#include "tensor_io/kernels/update_kernels.inc"
