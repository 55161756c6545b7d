#include "launch/compiled/compiled_graph.hpp"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

#include <utility>

#include "tensor_io/base/error.hpp"

namespace troupe {

struct CompiledGraph::Code {
  using Runner = torch::inductor::AOTIModelContainerRunnerCpu;

  CompiledGraphForm form;
  std::string name;
  std::unique_ptr<Runner> forward, backward;
};

namespace {

using Code = CompiledGraph::Code;

struct CodeHolder final : torch::CustomClassHolder {
  explicit CodeHolder(std::shared_ptr<const Code> held) : code(std::move(held)) {}
  std::shared_ptr<const Code> code;
};

// Without gaps, the dimensions in this order; those of size 1 have no place.
bool is_dense_in_order(const at::Tensor& tensor, const std::vector<std::size_t>& order) {
  std::int64_t step = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    const auto dim = static_cast<std::int64_t>(*d);
    if (tensor.size(dim) != 1 && tensor.stride(dim) != step) return false;
    step *= tensor.size(dim);
  }
  return true;
}

at::Tensor in_order(const at::Tensor& tensor, const std::vector<std::size_t>& order) {
  if (tensor.numel() == 0 || is_dense_in_order(tensor, order)) return tensor;
  std::vector<std::int64_t> strides(order.size());
  std::int64_t step = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[*d] = step;
    step *= tensor.size(static_cast<std::int64_t>(*d));
  }
  return at::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(tensor);
}

std::string shape_text(const CompiledForm& form) {
  std::string text;
  for (const auto& size : form.sizes) text += (text.empty() ? "" : ", ") + describe(size);
  return "(" + text + ")";
}

[[noreturn]] void refuse(const std::string& graph, const std::string& name, const std::string& cause) {
  throw Error(ErrorCode::mismatch, graph + ", " + name, cause,
              "give the model what it was compiled for, or compile it for this");
}

// What the tensor's sizes say of the batch's sizes, or that they don't fit.
void match(const std::string& graph, const std::string& name, const at::Tensor& tensor, const CompiledForm& form,
           CompiledSizes& sizes) {
  if (tensor.scalar_type() != form.dtype)
    refuse(graph, name,
           std::string("it is ") + c10::toString(tensor.scalar_type()) + ", and the model was compiled for " +
               c10::toString(form.dtype));
  if (!tensor.device().is_cpu())
    refuse(graph, name, "it is on " + tensor.device().str() + ", and the model is compiled for the CPU");
  const auto differs = [&] {
    refuse(graph, name,
           "its shape is " + c10::str(tensor.sizes()) + ", and the model was compiled for " + shape_text(form));
  };
  if (tensor.layout() != at::kStrided || tensor.dim() != static_cast<std::int64_t>(form.sizes.size())) differs();
  for (std::size_t d = 0; d < form.sizes.size(); ++d) {
    const auto& size = form.sizes[d];
    const auto actual = tensor.size(static_cast<std::int64_t>(d));
    if (!size.known) continue;
    if (size.symbols.size() == 1) {
      const auto known = sizes.find(size.symbols[0]);
      if (known == sizes.end()) {
        if (size.factor == 0 || actual % size.factor != 0) differs();
        sizes.emplace(size.symbols[0], actual / size.factor);
        continue;
      }
    }
    auto wanted = size.factor;
    bool all = true;
    for (const auto& symbol : size.symbols) {
      const auto known = sizes.find(symbol);
      all = all && known != sizes.end();
      if (all) wanted *= known->second;
    }
    if (all && wanted != actual) {
      std::string where;
      for (const auto& [symbol, value] : sizes)
        where += (where.empty() ? " where " : ", ") + symbol + " is " + std::to_string(value);
      refuse(
          graph, name,
          "its shape is " + c10::str(tensor.sizes()) + ", and the model was compiled for " + shape_text(form) + where);
    }
  }
}

// AOTInductor throws plain exceptions, which name neither model nor remedy.
template <class Run>
auto named(const Code& code, const char* pass, Run run) {
  try {
    return run();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error(ErrorCode::user, code.name, std::string(pass) + " failed: " + text.substr(0, text.find('\n')),
                "compare it with Python: troupe compile --check");
  }
}

struct GraphCall : torch::autograd::Function<GraphCall> {
  // Returns outputs, then what forward wrote.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                                                const std::shared_ptr<const Code>& code) {
    const auto& form = code->form;
    auto results = named(*code, "forward", [&] { return code->forward->run(inputs.vec()); });
    torch::autograd::variable_list kept, outputs, fixed;
    kept.reserve(form.saved.size());
    for (const auto& saved : form.saved) {
      if (!saved.result) {
        kept.push_back(inputs[saved.index]);
        continue;
      }
      // Inductor may lay out an activation otherwise than backward is compiled for.
      const auto& activation = results.at(saved.index);
      if (activation.dim() != static_cast<std::int64_t>(saved.order.size()))
        refuse(code->name, "an activation", "its shape is " + c10::str(activation.sizes()));
      kept.push_back(in_order(activation, saved.order));
    }
    context->save_for_backward(std::move(kept));
    context->saved_data["code"] = c10::IValue::make_capsule(c10::make_intrusive<CodeHolder>(code));
    std::vector<bool> differentiable(form.outputs.size(), false);
    for (const auto output : form.tangents) differentiable[output] = true;
    const auto writes = form.writes.size();
    for (std::size_t i = 0; i < form.outputs.size() + writes; ++i) {
      const auto& result = results.at(i < form.outputs.size() ? i + writes : i - form.outputs.size());
      outputs.push_back(result);
      if (i >= form.outputs.size() || !differentiable[i]) fixed.push_back(result);
    }
    context->mark_non_differentiable(fixed);
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto holder = context->saved_data["code"].toCapsule();
    const auto& code = *static_cast<const CodeHolder&>(*holder).code;
    const auto& form = code.form;
    if (at::GradMode::is_enabled()) {
      throw Error(ErrorCode::usage, code.name, "a compiled model has no second derivative",
                  "call backward without create_graph");
    }
    auto inputs = context->get_saved_variables();
    for (const auto output : form.tangents) {
      const auto& tangent = gradients.at(output);
      const auto& wanted = form.outputs[output];
      inputs.push_back(
          in_order(tangent.scalar_type() == wanted.dtype ? tangent : tangent.to(wanted.dtype), wanted.order));
    }
    auto results = named(code, "backward", [&] { return code.backward->boxed_run(std::move(inputs)); });
    torch::autograd::variable_list of_inputs(form.inputs.size() + 1);  // and of the code, which has none
    for (std::size_t i = 0; i < form.gradients.size(); ++i) of_inputs[form.gradients[i]] = std::move(results.at(i));
    return of_inputs;
  }
};

std::unique_ptr<Code::Runner> open(const CompiledFile& file, const std::string& section) {
  const auto memory = file.section_in_memory(section);
  // The library stays open without the descriptor. One model in it: a rank makes one call at a time.
  return std::make_unique<Code::Runner>(memory->path(), 1, /*run_single_threaded=*/true);
}

}  // namespace

CompiledGraph::CompiledGraph(const CompiledFile& file, std::size_t index) {
  auto code = std::make_shared<Code>();
  code->form = file.manifest().graphs.at(index);
  code->name = file.manifest().model + " (" + file.path() + ")";
  const auto number = std::to_string(index);
  try {
    code->forward = open(file, number + ".forward");
    if (code->form.backward) code->backward = open(file, number + ".backward");
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::bad_data, "opening the compiled model: " + file.path(), error.what_without_backtrace(),
                "make it again: troupe compile");
  }
  code_ = std::move(code);
}

CompiledGraph::~CompiledGraph() = default;

std::vector<std::int64_t> CompiledGraph::shape(std::size_t input, const CompiledSizes& sizes) const {
  std::vector<std::int64_t> shape;
  for (const auto& size : code_->form.inputs[input].sizes) {
    auto number = size.factor;
    bool known = size.known;
    for (const auto& symbol : size.symbols) {
      const auto found = sizes.find(symbol);
      known = known && found != sizes.end();
      if (known) number *= found->second;
    }
    if (!known)
      refuse(code_->name, "a dropout mask", "its size " + describe(size) + " does not follow from the other inputs");
    shape.push_back(number);
  }
  return shape;
}

std::vector<at::Tensor> CompiledGraph::run(std::vector<at::Tensor> inputs, const std::vector<std::string>& names,
                                           bool keep_written, const Draw& draw) const {
  const auto& form = code_->form;
  CompiledSizes sizes;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) match(code_->name, names[i], inputs[i], form.inputs[i], sizes);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) inputs[i] = draw(i, shape(i, sizes));
  }
  // Types were decided when it was compiled: no operator within may choose them again.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  bool differentiable = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    differentiable = differentiable || inputs[i].requires_grad();
    if (is_dense_in_order(inputs[i], form.inputs[i].order)) continue;
    if (inputs[i].is_leaf() && inputs[i].requires_grad()) {
      refuse(code_->name, names[i],
             "its strides are " + c10::str(inputs[i].strides()) +
                 ", and the model was compiled for a tensor without gaps");
    }
    inputs[i] = in_order(inputs[i], form.inputs[i].order);
  }
  std::vector<at::Tensor> results;
  if (form.backward && differentiable && at::GradMode::is_enabled()) {
    results = GraphCall::apply(at::TensorList(inputs), code_);
  } else {
    const at::NoGradGuard no_grad;
    auto all = named(*code_, "forward", [&] { return code_->forward->run(inputs); });
    const auto first = static_cast<std::ptrdiff_t>(form.writes.size());
    results.assign(all.begin() + first, all.begin() + first + static_cast<std::ptrdiff_t>(form.outputs.size()));
    results.insert(results.end(), all.begin(), all.begin() + first);
  }
  if (!keep_written) {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < form.writes.size(); ++i)
      inputs[form.writes[i]].copy_(results.at(form.outputs.size() + i));
  }
  results.resize(form.outputs.size());
  return results;
}

}  // namespace troupe
