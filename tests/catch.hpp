#pragma once
// LibTorch defines glog's CHECK; Catch2's is meant in tests. Some test programs do without LibTorch.
#if __has_include(<c10/util/Logging.h>)
#include <c10/util/Logging.h>
#undef CHECK
#endif
// Debian 12 ships Catch2 2.13, later releases ship 3: one header for both.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
