#pragma once
// Debian's libgloo-dev leaves this header out, which the installed <gloo/transport/tcp/pair.h> includes. This stands in for it where the
// system has none (-idirafter). Only what the layout of tcp::Pair needs: both classes are one smart pointer, as in Gloo itself.
#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr final {
  std::shared_ptr<T> pointer_;
};

template <typename T>
class WeakNonOwningPtr final {
  std::weak_ptr<T> pointer_;
};

}  // namespace gloo
