// troupe train: a rank of a model that `troupe compile` compiled, or `gradients MODEL BATCH OUT` for its --check.
#include <cstdio>
#include <string_view>

#include "launch/compiled/compiled_job.hpp"
#include "tensor_io/base/error.hpp"

int main(int argc, char** argv) {
  try {
    if (argc == 5 && std::string_view(argv[1]) == "gradients") {
      troupe::write_gradients(argv[2], argv[3], argv[4]);
      return 0;
    }
    return troupe::run(troupe::compiled_job(), argc, argv);
  } catch (const troupe::Error& error) {
    std::fprintf(stderr, "troupe train: %s\n", error.what());
    return troupe::exit_code(error.code());
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "troupe train: %s\n", error.what_without_backtrace());
    return troupe::exit_code(troupe::ErrorCode::user);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "troupe train: %s\n", error.what());
    return troupe::exit_code(troupe::ErrorCode::internal);
  }
}
