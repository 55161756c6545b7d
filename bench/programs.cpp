// The benchmarks that train are one program, so that LibTorch's headers are compiled once for all of them. Which one it
// is goes by the name that it was started by: the build makes a link for each.
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

namespace bench_bare_steps {
int run(int argc, char** argv);
}
namespace bench_loader {
int run(int argc, char** argv);
}
namespace bench_observe {
int run(int argc, char** argv);
}
namespace bench_pipeline {
int run(int argc, char** argv);
}
namespace bench_slow_rank {
int run(int argc, char** argv);
}
namespace bench_start {
int run(int argc, char** argv);
}
namespace bench_steps {
int run(int argc, char** argv);
}

int main(int argc, char** argv) {
  const std::map<std::string, int (*)(int, char**)> programs{{"bench_bare_steps", bench_bare_steps::run},
                                                             {"bench_loader", bench_loader::run},
                                                             {"bench_observe", bench_observe::run},
                                                             {"bench_pipeline", bench_pipeline::run},
                                                             {"bench_slow_rank", bench_slow_rank::run},
                                                             {"bench_start", bench_start::run},
                                                             {"bench_steps", bench_steps::run}};
  const auto name = std::filesystem::path(argv[0]).filename().string();
  const auto found = programs.find(name);
  if (found != programs.end()) return found->second(argc, argv);
  std::fprintf(stderr, "%s: no benchmark; start it by one of these names:", name.c_str());
  for (const auto& [known, run] : programs) std::fprintf(stderr, " %s", known.c_str());
  std::fprintf(stderr, "\n");
  return 64;
}
