// The manifest of a compiled model.
#include "launch/compiled/compiled_manifest.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace troupe;

TROUPE_FUZZ_TARGET(const std::uint8_t* data, std::size_t bytes) {
  return fuzz::try_input([&] {
    const auto manifest = parse_compiled_manifest(fuzz::text_of(data, bytes), "reading the compiled model: m.tm");
    // What the model relies on.
    for (const auto* pass : {&manifest.train, &manifest.eval}) {
      std::size_t values = manifest.fields.size();
      for (const auto& call : pass->calls) {
        const auto& graph = manifest.graphs.at(call.graph);
        for (const auto& argument : call.arguments) {
          if (argument.kind == CompiledArgument::Kind::value && argument.value >= values) std::abort();
        }
        if (call.arguments.size() != graph.inputs.size()) std::abort();
        values += call.results.size();
      }
      if (pass->loss >= values || values != pass->values) std::abort();
    }
  });
}
