// A coordinator's journal, as a crash or a bad disk leaves it.
#include "launch/journal.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  static const fuzz::InputFile file("journal");
  const auto path = file.write(fuzz::text_of(data, bytes));
  return fuzz::try_input([&] {
    Journal journal(path, "0123456789abcdef");
    Membership membership = journal.last().value_or(Membership{});
    membership.generation += 1;
    journal.append(membership);
  });
}
