#include "actors/strategy/own_actor.hpp"

#include "tensor_io/memory/memory_shortage.hpp"

namespace troupe {

ErrorReport report_of_own_actor(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.report();
  } catch (const c10::OutOfMemoryError& e) {
    return out_of_memory(e, c10::kCPU);  // what has actors of its own trains there
  } catch (const std::exception& e) {
    return {ErrorCode::user, -1, "a strategy's actor", -1, {}, e.what(), {}};
  } catch (...) {
    return {ErrorCode::user, -1, "a strategy's actor", -1, {}, "an exception that is not a std::exception", {}};
  }
}

}  // namespace troupe
