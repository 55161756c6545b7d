#include "launch/loop/slow_settings.hpp"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <thread>

#include "launch/config/config.hpp"

namespace troupe {
namespace {

bool has_flag(std::string_view cpuinfo, std::initializer_list<std::string_view> names) {
  const auto ends_word = [&](std::size_t at) {
    return at >= cpuinfo.size() || cpuinfo[at] == ' ' || cpuinfo[at] == '\n' || cpuinfo[at] == '\t';
  };
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    for (auto at = cpuinfo.find(name); at != std::string_view::npos; at = cpuinfo.find(name, at + 1)) {
      if ((at == 0 || ends_word(at - 1)) && ends_word(at + name.size())) return true;
    }
    return false;
  });
}

std::string count_of(int number, const char* what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

}  // namespace

// x86 lists them as flags, Arm as Features.
bool computes_bf16(std::string_view cpuinfo) { return has_flag(cpuinfo, {"avx512_bf16", "amx_bf16", "bf16"}); }
bool computes_fp16(std::string_view cpuinfo) { return has_flag(cpuinfo, {"avx512_fp16", "amx_fp16", "asimdhp"}); }

std::vector<std::string> slow_lines(const SlowFacts& facts) {
  std::vector<std::string> lines;
  const bool fp16 = facts.autocast_dtype == "fp16";
  if (facts.autocast && !(fp16 ? facts.computes_fp16 : facts.computes_bf16))
    lines.push_back("warning: use_amp is slow here: this CPU has no instructions for " + facts.autocast_dtype +
                    " and converts each number; try: --no-use_amp");
  if (facts.ranks_here * facts.threads > facts.cores)
    lines.push_back("warning: " + count_of(facts.ranks_here, "rank") + " with " + count_of(facts.threads, "thread") +
                    (facts.ranks_here == 1 ? "" : " each") + " share the " + count_of(facts.cores, "core") +
                    " of this host; try: fewer ranks on it, or a smaller --threads");
  if (facts.debug_build)
    lines.emplace_back("warning: Troupe was built with its assertions, which is slow; try: a release build");
  return lines;
}

SlowFacts slow_facts(const Config& config, c10::Device device, int ranks_here) {
  SlowFacts facts;
  facts.autocast = config.use_amp && device.is_cpu();
  facts.autocast_dtype = config.amp_dtype;
  if (facts.autocast) {
    std::ifstream file("/proc/cpuinfo");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    facts.computes_bf16 = text.empty() || computes_bf16(text);
    facts.computes_fp16 = text.empty() || computes_fp16(text);
  }
  facts.ranks_here = ranks_here;
  facts.threads = at::get_num_threads();
  // Those of its affinity. Ranks that are bound by node do not share them all.
  const bool bound = config.bind_cpus != "off";
  facts.cores =
      std::max(1, static_cast<int>(bound ? ::sysconf(_SC_NPROCESSORS_ONLN) : std::thread::hardware_concurrency()));
#ifndef NDEBUG
  facts.debug_build = true;
#endif
  return facts;
}

}  // namespace troupe
