#include "launch/compiled/compiled_model.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "launch/compiled/compiled_calls.hpp"
#include "launch/compiled/compiled_file.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

// Its hooks see the class in Python: `fsdp_wrap = "type:Block"`.
template <class ModuleImpl>
class NamedBlock final : public Block<ModuleImpl> {
 public:
  explicit NamedBlock(std::string type) : type_(std::move(type)) {}
  std::string block_type() const override { return type_; }

 private:
  std::string type_;
};

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const auto dot = path.find('.', begin);
    parts.push_back(path.substr(begin, dot - begin));
    if (dot == std::string::npos) return parts;
    begin = dot + 1;
  }
}

std::shared_ptr<torch::nn::Module> new_block(const CompiledBlockForm& form, bool branches) {
  if (branches) return std::make_shared<NamedBlock<CompiledBranchImpl>>(form.type);
  return std::make_shared<NamedBlock<CompiledBlockImpl>>(form.type);
}

}  // namespace

/// What the model is made of, and how it is made.
class CompiledModel::Parts {
 public:
  Parts(CompiledModel& model, const CompiledFile& file);
  Loss loss(const Batch& batch, bool train) const;
  const CompiledManifest& manifest() const noexcept { return manifest_; }
  std::uint64_t hash() const noexcept { return hash_; }

 private:
  void add_tensors(const CompiledFile& file);
  torch::nn::Module& module_at(const std::string& path);
  std::vector<CompiledCall> calls_of(const CompiledPass& pass, const CompiledFile& file);

  CompiledModel& model_;
  CompiledManifest manifest_;
  std::uint64_t hash_ = 0;
  std::map<std::string, at::Tensor, std::less<>> tensors_, constants_;
  std::vector<std::shared_ptr<const CompiledGraph>> graphs_;
  std::vector<CompiledCall> train_, eval_;
};

CompiledModel::CompiledModel(const std::string& path)
    : torch::nn::Module("CompiledModel"), parts_(std::make_unique<Parts>(*this, CompiledFile(path))) {}

CompiledModel::~CompiledModel() = default;

Loss CompiledModel::loss(const Batch& batch) { return parts_->loss(batch, is_training()); }

const CompiledManifest& CompiledModel::manifest() const noexcept { return parts_->manifest(); }

std::uint64_t CompiledModel::file_hash() const noexcept { return parts_->hash(); }

CompiledModel::Parts::Parts(CompiledModel& model, const CompiledFile& file)
    : model_(model), manifest_(file.manifest()), hash_(file.hash()) {
  add_tensors(file);
  for (std::size_t i = 0; i < manifest_.graphs.size(); ++i) graphs_.push_back(std::make_shared<CompiledGraph>(file, i));
  train_ = calls_of(manifest_.train, file);
  eval_ = calls_of(manifest_.eval, file);
}

// Blocks are made on the way: a path's module is made once.
torch::nn::Module& CompiledModel::Parts::module_at(const std::string& path) {
  torch::nn::Module* module = &model_;
  std::string so_far;
  for (const auto& part : parts_of(path)) {
    so_far += (so_far.empty() ? "" : ".") + part;
    const auto children = module->named_children();
    if (const auto* child = children.find(part)) {
      module = child->get();
      continue;
    }
    const auto block =
        std::find_if(manifest_.blocks.begin(), manifest_.blocks.end(), [&](const auto& b) { return b.path == so_far; });
    bool branches = !manifest_.no_pipeline.empty();
    for (const auto* pass : {&manifest_.train, &manifest_.eval}) {
      for (const auto& call : pass->calls) {
        if (call.block && manifest_.blocks[*call.block].path == so_far) branches = branches || call.results.size() != 1;
      }
    }
    module = module
                 ->register_module(part, block == manifest_.blocks.end() ? std::make_shared<torch::nn::Module>()
                                                                         : new_block(*block, branches))
                 .get();
  }
  return *module;
}

void CompiledModel::Parts::add_tensors(const CompiledFile& file) {
  std::map<std::string, at::Tensor, std::less<>> values;
  for (auto& [name, value] : file.values()) values.emplace(name, std::move(value));
  constexpr std::string_view kConstant = "constant:";
  for (const auto& [name, value] : values) {
    if (name.starts_with(kConstant)) constants_.emplace(name.substr(kConstant.size()), value);
  }
  const auto refuse = [&](const std::string& cause) {
    throw Error(ErrorCode::bad_data, "reading the compiled model: " + file.path(), cause,
                "make it again: troupe compile");
  };
  for (const auto& block : manifest_.blocks) module_at(block.path);  // in their order, which is a pipeline's
  for (const auto& t : manifest_.tensors) {
    at::Tensor value;
    if (!t.tied.empty()) {
      value = tensors_.at(t.tied);
    } else {
      const auto found = values.find(t.name);
      if (found == values.end()) refuse("it has no initial values of " + printable(t.name));
      value = found->second;
      if (value.sizes() != at::IntArrayRef(t.sizes) || value.scalar_type() != t.dtype)
        refuse("the initial values of " + printable(t.name) + " do not have the shape and dtype that it states");
    }
    const auto dot = t.name.rfind('.');
    auto& owner = dot == std::string::npos ? model_ : module_at(t.name.substr(0, dot));
    const auto own_name = dot == std::string::npos ? t.name : t.name.substr(dot + 1);
    if (!t.saved) {  // in no checkpoint, so no buffer here
      tensors_.emplace(t.name, value);
      continue;
    }
    tensors_.emplace(t.name, t.buffer ? owner.register_buffer(own_name, value)
                                      : owner.register_parameter(own_name, value, t.trained));
  }
}

std::vector<CompiledCall> CompiledModel::Parts::calls_of(const CompiledPass& pass, const CompiledFile& file) {
  std::vector<CompiledCall> calls;
  std::size_t masks = 0;
  for (const auto& form : pass.calls) {
    CompiledCall call;
    call.graph = graphs_.at(form.graph);
    call.results = form.results;
    if (form.block) call.block = &module_at(manifest_.blocks[*form.block].path);
    auto& owner = call.block != nullptr ? *call.block : model_;
    for (const auto& argument : form.arguments) {
      at::Tensor tensor;
      std::shared_ptr<nn::DropoutImpl> dropout;
      std::string name = argument.name;
      switch (argument.kind) {
        case CompiledArgument::Kind::value:
          name = argument.value < manifest_.fields.size() ? "the batch's " + manifest_.fields[argument.value].name
                                                          : "an activation";
          call.values.push_back(argument.value);
          break;
        case CompiledArgument::Kind::tensor: tensor = tensors_.at(argument.name); break;
        case CompiledArgument::Kind::constant: {
          const auto found = constants_.find(argument.name);
          if (found == constants_.end())
            throw Error(ErrorCode::bad_data, "reading the compiled model: " + file.path(),
                        "it has no constant " + printable(argument.name), "make it again: troupe compile");
          tensor = found->second;
          break;
        }
        case CompiledArgument::Kind::mask:
          name = "a dropout mask";
          dropout =
              owner.register_module("compiled_mask_" + std::to_string(masks++),
                                    std::make_shared<nn::DropoutImpl>(torch::nn::DropoutOptions(argument.probability)));
          break;
      }
      call.tensors.push_back(std::move(tensor));
      call.dropouts.push_back(std::move(dropout));
      call.names.push_back(std::move(name));
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

Loss CompiledModel::Parts::loss(const Batch& batch, bool train) const {
  const auto& pass = train ? manifest_.train : manifest_.eval;
  std::vector<at::Tensor> values(pass.values);
  for (std::size_t i = 0; i < manifest_.fields.size(); ++i) values[i] = batch[manifest_.fields[i].name];
  for (const auto& call : train ? train_ : eval_) {
    std::vector<at::Tensor> given;
    for (const auto number : call.values) given.push_back(values[number]);
    std::vector<at::Tensor> results;
    if (auto* block = dynamic_cast<Block<CompiledBlockImpl>*>(call.block)) {
      results = {block->forward(given, &call)};
    } else if (auto* branch = dynamic_cast<Block<CompiledBranchImpl>*>(call.block)) {
      results = branch->forward(given, &call);
    } else {
      results = call.run(given);
    }
    for (std::size_t i = 0; i < results.size(); ++i) values[call.results[i]] = std::move(results[i]);
  }
  CorrectSamples correct = 0.0;
  if (pass.correct) correct = values[*pass.correct];
  if (!pass.count) return {values[pass.loss], std::move(correct)};
  return Loss::sum(values[pass.loss], values[*pass.count].item<std::int64_t>(), std::move(correct));
}

}  // namespace troupe
