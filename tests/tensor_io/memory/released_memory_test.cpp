#include "tensor_io/memory/released_memory.hpp"

#include <memory>
#include <string>
#include <vector>

#include "tests/catch.hpp"

using namespace troupe;

TEST_CASE("an absent tensor's addresses are known, and only they, as long as it is") {
  const char* first = nullptr;
  {
    const AbsentMemory absent(100, "the first"), other(5'000, std::string(300, 'x'));
    REQUIRE(absent.data() != nullptr);
    first = static_cast<const char*>(absent.data());
    const auto* second = static_cast<const char*>(other.data());
    CHECK(std::string(absent_memory_at(first)) == "the first");
    CHECK(std::string(absent_memory_at(first + 99)) == "the first");
    CHECK(absent_memory_at(first + 100) == nullptr);
    CHECK(std::string(absent_memory_at(second + 4'999)) == std::string(240, 'x'));
    CHECK(absent_memory_at(nullptr) == nullptr);
    CHECK(absent_memory_at(&first) == nullptr);
  }
  CHECK(absent_memory_at(first) == nullptr);
}

TEST_CASE("more absent tensors than can be told of are still absent") {
  std::vector<std::unique_ptr<AbsentMemory>> many;
  for (int i = 0; i < 1'030; ++i) many.push_back(std::make_unique<AbsentMemory>(8, std::to_string(i)));
  CHECK(std::string(absent_memory_at(many.front()->data())) == "0");
  CHECK(many.back()->data() != nullptr);
  CHECK(absent_memory_at(many.back()->data()) == nullptr);
  many.front().reset();
  const AbsentMemory next(8, "next");
  CHECK(std::string(absent_memory_at(next.data())) == "next");
}
