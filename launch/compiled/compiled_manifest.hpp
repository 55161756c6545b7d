#pragma once
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// A size: a number, or a product of a number and sizes of the batch, by name.
struct CompiledSize {
  std::int64_t factor = 1;
  std::vector<std::string> symbols;
  bool known = true;  ///< false: another expression, which is not checked
};

/// The form of a graph's argument or result.
struct CompiledForm {
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<CompiledSize> sizes;
  std::vector<std::size_t> order;  ///< of the dimensions in memory, the slowest first; there are no gaps
};

/// A graph's forward and, for training, its backward. Indices are of `inputs` and of forward's results, which are:
/// written inputs, outputs, activations.
struct CompiledGraphForm {
  struct Saved {
    bool result = false;  ///< of forward's results; else of the inputs
    std::size_t index = 0;
    std::vector<std::size_t> order;  ///< of a result's dimensions, as in CompiledForm: backward is compiled for it
  };
  std::vector<CompiledForm> inputs, outputs;
  std::vector<std::size_t> writes;     ///< inputs that forward changes: its first results are their new values
  bool backward = false;               ///< there is one
  std::vector<Saved> saved;            ///< backward's first inputs
  std::vector<std::size_t> tangents;   ///< outputs whose gradients are backward's other inputs
  std::vector<std::size_t> gradients;  ///< inputs whose gradients backward returns
};

/// The source of a graph's input.
struct CompiledArgument {
  enum class Kind : std::uint8_t { value, tensor, constant, mask };
  Kind kind = Kind::value;
  std::size_t value = 0;   ///< a field of the batch or a result of an earlier call, by number
  std::string name;        ///< of a tensor of the model, or of a constant
  double probability = 0;  ///< of a mask: that an element is dropped
};

struct CompiledCallForm {
  std::size_t graph = 0;
  std::optional<std::size_t> block;  ///< of `blocks`; none: the part between them
  std::vector<CompiledArgument> arguments;
  std::vector<std::size_t> results;  ///< numbers that its outputs get
};

/// A forward of the whole model with its loss, in train or eval mode. Values are numbered: the batch's fields first.
struct CompiledPass {
  std::vector<CompiledCallForm> calls;
  std::size_t values = 0;
  std::size_t loss = 0;
  std::optional<std::size_t> count, correct;
};

struct CompiledTensor {
  std::string name;
  bool buffer = false;
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<std::int64_t> sizes;
  bool trained = false;  ///< a parameter that requires a gradient
  bool saved = true;     ///< false: a buffer that is in no checkpoint
  std::string tied;      ///< it is the tensor of this name; empty: it is its own
};

struct CompiledField {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Float;
};

struct CompiledBlockForm {
  std::string path, type;  ///< type: the class in Python
};

struct CompiledSection {
  std::string name, sha256;
  std::uint64_t offset = 0, size = 0;
};

/// The description in a compiled model's file (docs/formats.md). All indices are in range, each value is computed
/// before it is used, and each tensor that is used is there.
struct CompiledManifest {
  std::string torch, model, autocast;
  std::vector<std::string> instruction_set;
  std::vector<CompiledField> fields;
  std::vector<CompiledTensor> tensors;
  std::vector<CompiledBlockForm> blocks;
  std::vector<CompiledGraphForm> graphs;
  CompiledPass train, eval;
  std::string no_pipeline;  ///< why a pipeline cannot cut between the blocks; empty: it can
  std::vector<CompiledSection> sections;

  const CompiledSection* section(std::string_view name) const noexcept;
  const CompiledTensor* tensor(std::string_view name) const noexcept;
};

/// Reads untrusted text. Throws Error(bad_data) whose operation is `where` and whose cause names the field.
CompiledManifest parse_compiled_manifest(std::string_view text, const std::string& where);

/// A product of the batch's sizes as text, for errors: `4*s0`.
std::string describe(const CompiledSize& size);

}  // namespace troupe
