#include "launch/compiled/compiled_manifest.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/files/bounded_json.hpp"

namespace troupe {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostItems = 100'000;  // of each list
constexpr std::int64_t kMostOfSize = std::int64_t{1} << 40;

/// Reads values and says which of them is wrong.
class Reader {
 public:
  explicit Reader(std::string where) : where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::bad_data, where_, what, "make the file again: troupe compile");
  }
  void require(bool holds, const std::string& what) const {
    if (!holds) refuse(what);
  }

  CompiledSize size(const Json& json) const {
    CompiledSize size;
    if (json.is_null()) {
      size.known = false;
    } else if (json.is_number_integer()) {
      size.factor = json.get<std::int64_t>();
    } else {
      size.factor = json.at(0).get<std::int64_t>();
      for (std::size_t i = 1; i < json.size(); ++i) size.symbols.push_back(json.at(i).get<std::string>());
    }
    require(size.factor >= 0 && size.factor < kMostOfSize && size.symbols.size() <= 8,
            "a size is negative or too large");
    return size;
  }

  at::ScalarType dtype(const Json& json) const {
    const auto text = json.at("dtype").get<std::string>();
    const auto type = scalar_type_of(text);
    if (!type) refuse("the dtype " + printable(text) + " is unknown");
    return *type;
  }

  CompiledForm form(const Json& json) const {
    CompiledForm form;
    form.dtype = dtype(json);
    for (const auto& item : json.at("sizes")) form.sizes.push_back(size(item));
    form.order = order(json.at("order"));
    require(form.order.size() == form.sizes.size(), "a tensor's numbers of sizes and dimensions differ");
    return form;
  }

  std::vector<std::size_t> order(const Json& json) const {
    auto order = json.get<std::vector<std::size_t>>();
    require(order.size() <= SafetensorsFile::kMaxDimensions, "a tensor has too many dimensions");
    auto sorted = order;
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::size_t> all(order.size());
    std::iota(all.begin(), all.end(), 0);
    require(sorted == all, "an order is not a permutation of the dimensions");
    return order;
  }

  std::vector<std::size_t> indices(const Json& json, std::size_t below, const std::string& what) const {
    auto list = json.get<std::vector<std::size_t>>();
    require(std::set(list.begin(), list.end()).size() == list.size(), what + " has an index twice");
    for (const auto index : list) require(index < below, what + " has the index " + std::to_string(index));
    return list;
  }

  CompiledGraphForm graph(const Json& json) const {
    CompiledGraphForm graph;
    for (const auto& item : json.at("inputs")) graph.inputs.push_back(form(item));
    for (const auto& item : json.at("outputs")) graph.outputs.push_back(form(item));
    graph.writes = indices(json.at("writes"), graph.inputs.size(), "writes");
    graph.backward = json.at("backward").get<bool>();
    for (const auto& item : json.at("saved")) {
      const auto of = item.at(0).get<std::string>();
      require(of == "input" || of == "output", "saved has neither an input nor an output");
      CompiledGraphForm::Saved saved{of == "output", item.at(1).get<std::size_t>(), {}};
      require(!saved.result || item.size() == 3, "saved does not say how an activation is laid out");
      if (saved.result) saved.order = order(item.at(2));
      require(saved.index < (saved.result ? kMostItems : graph.inputs.size()), "saved is out of range");
      graph.saved.push_back(std::move(saved));
    }
    graph.tangents = indices(json.at("tangents"), graph.outputs.size(), "tangents");
    graph.gradients = indices(json.at("gradients"), graph.inputs.size(), "gradients");
    require(graph.backward || (graph.tangents.empty() && graph.saved.empty()), "a graph without backward has tangents");
    return graph;
  }

  CompiledArgument argument(const Json& json) const {
    require(json.is_object() && json.size() == 1, "an argument is not one of value, tensor, constant, mask");
    CompiledArgument argument;
    if (json.contains("value")) {
      argument.value = json.at("value").get<std::size_t>();
    } else if (json.contains("mask")) {
      argument.kind = CompiledArgument::Kind::mask;
      argument.probability = json.at("mask").get<double>();
      require(argument.probability > 0 && argument.probability <= 1, "a mask's probability is not above 0, to 1");
    } else {
      const bool tensor = json.contains("tensor");
      argument.kind = tensor ? CompiledArgument::Kind::tensor : CompiledArgument::Kind::constant;
      argument.name = json.at(tensor ? "tensor" : "constant").get<std::string>();
    }
    return argument;
  }

  CompiledTensor tensor(const Json& json) const {
    CompiledTensor tensor;
    tensor.name = json.at("name").get<std::string>();
    const auto kind = json.at("kind").get<std::string>();
    require(kind == "parameter" || kind == "buffer", "a tensor is neither a parameter nor a buffer");
    tensor.buffer = kind == "buffer";
    tensor.dtype = dtype(json);
    tensor.sizes = json.at("shape").get<std::vector<std::int64_t>>();
    tensor.trained = !tensor.buffer && json.at("trained").get<bool>();
    tensor.saved = !tensor.buffer || json.at("saved").get<bool>();
    if (json.contains("tied")) tensor.tied = json.at("tied").get<std::string>();
    require(refused_name(tensor.name).empty(), "a tensor has the name " + printable(tensor.name));
    require(checked_numel(tensor.sizes, at::elementSize(tensor.dtype)).has_value(),
            "the shape of " + printable(tensor.name) + " is too large");
    return tensor;
  }

  CompiledPass pass(const Json& json, const CompiledManifest& m) const {
    CompiledPass pass;
    std::vector<bool> there(m.fields.size(), true);  // values, by number
    for (const auto& item : json.at("calls")) {
      CompiledCallForm call;
      call.graph = item.at("graph").get<std::size_t>();
      require(call.graph < m.graphs.size(), "a call names a graph that does not exist");
      const auto& graph = m.graphs[call.graph];
      if (const auto& block = item.at("block"); !block.is_null()) {
        const auto path = block.get<std::string>();
        const auto found =
            std::find_if(m.blocks.begin(), m.blocks.end(), [&](const auto& b) { return b.path == path; });
        require(found != m.blocks.end(), "a call names the block " + printable(path) + ", which does not exist");
        call.block = static_cast<std::size_t>(found - m.blocks.begin());
      }
      for (const auto& given : item.at("arguments")) {
        auto a = argument(given);
        if (a.kind == CompiledArgument::Kind::value)
          require(a.value < there.size() && there[a.value], "a call takes a value that is not computed yet");
        if (a.kind == CompiledArgument::Kind::tensor)
          require(m.tensor(a.name) != nullptr, "a call takes " + printable(a.name) + ", which the model does not have");
        call.arguments.push_back(std::move(a));
      }
      require(call.arguments.size() == graph.inputs.size(), "a call and its graph have different numbers of arguments");
      call.results = indices(item.at("results"), kMostItems, "results");
      require(call.results.size() == graph.outputs.size(), "a call and its graph have different numbers of results");
      for (const auto number : call.results) {
        require(number == there.size(), "the results of calls are not numbered consecutively");
        there.push_back(true);
      }
      pass.calls.push_back(std::move(call));
    }
    pass.values = there.size();
    const auto& loss = json.at("loss");
    const auto value_of = [&](const char* name) {
      const auto index = loss.at(name).get<std::size_t>();
      require(index < there.size(), std::string(name) + " is not a value");
      return index;
    };
    pass.loss = value_of("loss");
    if (loss.contains("count")) pass.count = value_of("count");
    if (loss.contains("correct")) pass.correct = value_of("correct");
    return pass;
  }

  CompiledManifest manifest(const Json& json) const {
    require(json.at("format") == 1, "the format is not 1, the one that this version of Troupe reads");
    CompiledManifest m;
    const auto device = json.at("device").get<std::string>();
    require(device == "cpu", "it is compiled for the device " + printable(device) + ", and only cpu is supported");
    m.torch = json.at("torch").get<std::string>();
    m.model = json.at("model").get<std::string>();
    if (const auto& autocast = json.at("autocast"); !autocast.is_null()) m.autocast = autocast.get<std::string>();
    m.instruction_set = json.at("instruction_set").get<std::vector<std::string>>();
    for (const auto& item : json.at("fields")) m.fields.push_back({item.at("name").get<std::string>(), dtype(item)});
    std::set<std::string> names;
    for (const auto& item : json.at("tensors")) {
      m.tensors.push_back(tensor(item));
      const auto& added = m.tensors.back();
      require(names.insert(added.name).second, "the tensor " + printable(added.name) + " is there twice");
    }
    for (const auto& t : m.tensors) {
      const auto* other = t.tied.empty() ? nullptr : m.tensor(t.tied);
      require(t.tied.empty() || (other != nullptr && other->tied.empty() && other->sizes == t.sizes &&
                                 other->dtype == t.dtype && other->buffer == t.buffer),
              "the tensor " + printable(t.name) + " is tied to a tensor that does not match it");
    }
    for (const auto& item : json.at("blocks"))
      m.blocks.push_back({item.at("path").get<std::string>(), item.at("type").get<std::string>()});
    for (const auto& item : json.at("graphs")) m.graphs.push_back(graph(item));
    const auto& passes = json.at("passes");
    m.train = pass(passes.at("train"), m);
    m.eval = pass(passes.at("eval"), m);
    m.no_pipeline = passes.at("train").at("chain").get<std::string>();
    for (const auto& item : json.at("sections")) {
      m.sections.push_back({item.at("name").get<std::string>(), item.at("sha256").get<std::string>(),
                            item.at("offset").get<std::uint64_t>(), item.at("size").get<std::uint64_t>()});
    }
    for (std::size_t g = 0; g < m.graphs.size(); ++g) {
      require(m.section(std::to_string(g) + ".forward") != nullptr &&
                  (!m.graphs[g].backward || m.section(std::to_string(g) + ".backward") != nullptr),
              "the code of graph " + std::to_string(g) + " is missing");
    }
    require(m.section("values") != nullptr, "the initial values are missing");
    return m;
  }

 private:
  std::string where_;
};

}  // namespace

const CompiledSection* CompiledManifest::section(std::string_view name) const noexcept {
  const auto found = std::find_if(sections.begin(), sections.end(), [&](const auto& s) { return s.name == name; });
  return found == sections.end() ? nullptr : &*found;
}

const CompiledTensor* CompiledManifest::tensor(std::string_view name) const noexcept {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

CompiledManifest parse_compiled_manifest(std::string_view text, const std::string& where) {
  JsonLimits limits;
  limits.depth = 10;
  return read_bounded_json(text, where, limits, [&](const Json& json) { return Reader(where).manifest(json); });
}

std::string describe(const CompiledSize& size) {
  if (!size.known) return "?";
  std::string text = size.factor == 1 && !size.symbols.empty() ? "" : std::to_string(size.factor);
  for (const auto& symbol : size.symbols) text += (text.empty() ? "" : "*") + symbol;
  return text;
}

}  // namespace troupe
