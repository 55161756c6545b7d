// Catch2 2's runner takes 15 s to compile: once for all test programs.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

int run_tests(int argc, char** argv) { return Catch::Session().run(argc, argv); }
