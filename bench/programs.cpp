// The benchmarks that train are one program, so that LibTorch's headers are compiled once for all of them. Which one it
// is goes by the name that it was started by: the build makes a link for each.
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#define FOR_EACH_BENCHMARK(work) \
  work(bare_steps) work(compiled_call) work(loader) work(observe) work(pipeline) work(slow_rank) work(start) work(steps)

#define DECLARE(name)               \
  namespace bench_##name {          \
    int run(int argc, char** argv); \
  }
FOR_EACH_BENCHMARK(DECLARE)

#define ENTRY(name) {"bench_" #name, bench_##name::run},

int main(int argc, char** argv) {
  const std::map<std::string, int (*)(int, char**)> programs{FOR_EACH_BENCHMARK(ENTRY)};
  const auto name = std::filesystem::path(argv[0]).filename().string();
  const auto found = programs.find(name);
  if (found != programs.end()) return found->second(argc, argv);
  std::fprintf(stderr, "%s: no benchmark; start it by one of these names:", name.c_str());
  for (const auto& [known, run] : programs) std::fprintf(stderr, " %s", known.c_str());
  std::fprintf(stderr, "\n");
  return 64;
}
