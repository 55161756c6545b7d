#include "launch/loop/slow_settings.hpp"

#include <unistd.h>

#include "launch/config/config.hpp"
#include "tests/catch.hpp"

using namespace troupe;

TEST_CASE("[U06] settings that are slow on this machine are named, each with a remedy, and others are not") {
  SlowFacts facts;
  CHECK(slow_lines(facts).empty());
  facts.autocast = true, facts.autocast_dtype = "bf16", facts.computes_fp16 = false;
  CHECK(slow_lines(facts).empty());
  facts.computes_bf16 = false, facts.computes_fp16 = true;
  REQUIRE(slow_lines(facts).size() == 1);
  CHECK_THAT(slow_lines(facts).front(), Catch::StartsWith("warning: use_amp is slow here") && Catch::Contains("bf16") &&
                                            Catch::Contains("--no-use_amp"));
  facts.autocast_dtype = "fp16";
  CHECK(slow_lines(facts).empty());
  facts.ranks_here = 4, facts.threads = 2, facts.cores = 8;
  CHECK(slow_lines(facts).empty());
  facts.cores = 7;
  REQUIRE(slow_lines(facts).size() == 1);
  CHECK_THAT(slow_lines(facts).front(), Catch::Contains("4 ranks with 2 threads each share the 7 cores"));
  facts.cores = 1, facts.ranks_here = 1;
  CHECK_THAT(slow_lines(facts).front(), Catch::Contains("1 rank with 2 threads share the 1 core of this host"));
  facts.debug_build = true, facts.autocast_dtype = "bf16";
  CHECK(slow_lines(facts).size() == 3);
}

TEST_CASE("[U06] a CPU's instructions for half precision are whole words of /proc/cpuinfo") {
  const std::string old = "model name\t: Intel(R) bf16x CPU\nflags\t\t: fpu avx512f avx512_vnni\n";
  CHECK_FALSE(computes_bf16(old));
  CHECK_FALSE(computes_fp16(old));
  CHECK(computes_bf16("flags\t\t: avx512f avx512_bf16\n"));
  CHECK(computes_bf16("flags\t\t: amx_tile amx_bf16 amx_int8\n"));
  CHECK(computes_bf16("Features\t: fp asimd i8mm bf16"));
  CHECK(computes_fp16("flags\t\t: avx512_fp16\n"));
  CHECK_FALSE(computes_bf16(""));
}

TEST_CASE("[U06] ranks that are bound to the CPUs near their GPUs share those of the host") {
  Config config;
  config.bind_cpus = "node";
  CHECK(slow_facts(config, c10::Device(c10::kCPU), 2).cores == ::sysconf(_SC_NPROCESSORS_ONLN));
}

TEST_CASE("[U06] autocast is judged on the CPU alone, and only if it is asked for") {
  Config config;
  CHECK_FALSE(slow_facts(config, c10::Device(c10::kCPU), 2).autocast);
  config.use_amp = true;
  CHECK(slow_facts(config, c10::Device(c10::kCPU), 2).autocast);
  CHECK_FALSE(slow_facts(config, c10::Device(c10::kCUDA, 0), 2).autocast);
  CHECK(slow_facts(config, c10::Device(c10::kCPU), 2).ranks_here == 2);
}
