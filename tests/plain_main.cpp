// For test programs that do without LibTorch. Catch2 3 brings its own main, as in main.cpp.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
