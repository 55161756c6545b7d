#define TROUPE_KERNELS kernels_generic
#include "tensor_io/update_kernels.inc"
