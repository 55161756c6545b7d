#include "tensor_io/layers/autocast.hpp"

#include <ATen/autocast_mode.h>

namespace troupe {

AutocastGuard::AutocastGuard(bool enabled, c10::ScalarType dtype, c10::DeviceType device)
    : device_(device),
      enabled_(enabled),
      before_(at::autocast::is_autocast_enabled(device)),
      dtype_before_(at::autocast::get_autocast_dtype(device)) {
  if (!enabled_) return;
  at::autocast::set_autocast_dtype(device_, dtype);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  if (!enabled_) return;
  // The cache holds casts of the weights, which the optimizer is about to change.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace troupe
