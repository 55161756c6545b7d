#pragma once
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "actors/block/block_calls.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

/// The module's forward: its signature, and how it is called. Specialise it for a module whose forward is overloaded or
/// a template.
template <class ModuleImpl>
struct ForwardOf {
  static_assert(
      requires { &ModuleImpl::forward; },
      "a block's module has one forward, neither overloaded nor a template; specialise troupe::ForwardOf for another "
      "one");
  template <class Pointer>
  struct Of;
  template <class Class, class Result, class... Args>
  struct Of<Result (Class::*)(Args...)> {
    using Signature = Result(Args...);
  };
  template <class Class, class Result, class... Args>
  struct Of<Result (Class::*)(Args...) noexcept> {
    using Signature = Result(Args...);
  };
  template <class Class, class Result, class... Args>
  struct Of<Result (Class::*)(Args...) const> {
    using Signature = Result(Args...) const;
  };
  template <class Class, class Result, class... Args>
  struct Of<Result (Class::*)(Args...) const noexcept> {
    using Signature = Result(Args...) const;
  };
  using Signature = typename Of<decltype(&ModuleImpl::forward)>::Signature;

  template <class... Args>
  static decltype(auto) call(ModuleImpl& module, Args&&... args) {
    return module.ModuleImpl::forward(std::forward<Args>(args)...);
  }
};

/// A Sequential as a block: one tensor in, one out.
template <>
struct ForwardOf<torch::nn::SequentialImpl> {
  using Signature = at::Tensor(const at::Tensor&);
  static at::Tensor call(torch::nn::SequentialImpl& module, const at::Tensor& input) {
    return module.forward<at::Tensor>(input);
  }
};

/// An argument of forward, declared as Arg: a copy if it holds tensors, since hooks replace them; else a pointer to the
/// caller's.
template <class Arg>
class BlockArgument {
 public:
  explicit BlockArgument(std::remove_reference_t<Arg>& given) : given_(&given) {
    if constexpr (kHolds) copy();
  }

  void visit(TensorVisitor visit) {
    if constexpr (kHolds) TensorsIn<Value>::visit(*value_, visit);
  }
  void keep() {
    if constexpr (!kCopies) {
      throw Error(ErrorCode::usage, "activation checkpointing",
                  "an argument of the block's forward can't be copied for the recompute",
                  "take it by value or const reference, and make its type copyable");
    } else if (!value_) {
      copy();
    }
  }
  Arg pass() {
    if constexpr (!kCopies) {
      return static_cast<Arg&&>(*given_);
    } else {
      if (!value_) return static_cast<Arg&&>(*given_);
      if constexpr (std::is_rvalue_reference_v<Arg>) {
        return std::move(passed_.emplace(*value_));
      } else {
        return *value_;
      }
    }
  }

 private:
  template <class T>
  struct Owned {
    using Type = T;
  };
  template <class T>
  struct Owned<at::ArrayRef<T>> {
    using Type = std::vector<T>;
  };
  template <class Char>
  struct Owned<std::basic_string_view<Char>> {
    using Type = std::basic_string<Char>;
  };
  using Plain = std::remove_cvref_t<Arg>;
  using Value = typename Owned<Plain>::Type;
  // forward may write to it, so it stays the caller's own.
  static constexpr bool kWritten = std::is_lvalue_reference_v<Arg> && !std::is_const_v<std::remove_reference_t<Arg>>;
  // A reference to a view (TensorList) can't refer to the vector that holds the copy.
  static constexpr bool kCopies =
      !kWritten && std::is_copy_constructible_v<Value> && (std::is_same_v<Plain, Value> || !std::is_reference_v<Arg>);
  static constexpr bool kHolds = kCopies && TensorsIn<Value>::any;

  void copy() {
    if constexpr (std::is_same_v<Plain, Value>) {
      value_.emplace(*given_);
    } else {
      value_.emplace(given_->begin(), given_->end());
    }
  }

  std::remove_reference_t<Arg>* given_;
  std::conditional_t<kCopies, std::optional<Value>, std::monostate> value_{};
  std::conditional_t<kCopies && std::is_rvalue_reference_v<Arg>, std::optional<Value>, std::monostate> passed_{};
};

template <class ModuleImpl, class Result, class... Args>
class ModuleBody final : public BlockBody {
 public:
  explicit ModuleBody(ModuleImpl& module, std::remove_reference_t<Args>&... args)
      : module_(&module), arguments_(args...) {}

  void visit_inputs(TensorVisitor visit) override {
    std::apply([&](auto&... argument) { (argument.visit(visit), ...); }, arguments_);
  }
  void run() override {
    std::apply(
        [&](auto&... argument) {
          if constexpr (std::is_void_v<Result>) {
            ForwardOf<ModuleImpl>::call(*module_, argument.pass()...);
          } else {
            result_.emplace(ForwardOf<ModuleImpl>::call(*module_, argument.pass()...));
          }
        },
        arguments_);
  }
  void visit_outputs(TensorVisitor visit) override {
    if (result_) TensorsIn<Stored>::visit(*result_, visit);
  }
  void drop_outputs() override { result_.reset(); }
  void supply(const at::Tensor& output) override {
    if constexpr (std::is_same_v<Result, at::Tensor>) {
      result_.emplace(output);
    } else {
      throw Error(ErrorCode::usage, "pipeline", "the forward of a block between two stages does not return one tensor",
                  "return one tensor, or put the block inside one that does");
    }
  }
  void keep() override {
    owner_ = module_->weak_from_this().lock();
    std::apply([](auto&... argument) { (argument.keep(), ...); }, arguments_);
  }
  Result take() {
    if constexpr (!std::is_void_v<Result>) {
      return std::move(*std::exchange(result_, std::nullopt));
    }
  }

 private:
  static_assert(!std::is_reference_v<Result>, "a block's forward must return by value");
  using Stored = std::conditional_t<std::is_void_v<Result>, std::monostate, Result>;
  ModuleImpl* module_;
  std::shared_ptr<torch::nn::Module> owner_;  // set if the body outlives the call
  std::tuple<BlockArgument<Args>...> arguments_;
  std::optional<Stored> result_;
};

/// A module with hooks around its call.
///
/// C++ modules have no forward hooks, so a block puts them where all calls pass. Its `forward` has the signature of the
/// module's own, so the holder's call, `->forward(…)`, Sequential and AnyModule all go through the hooks. Parameters,
/// buffers and children keep their names. Without hooks a block's call is the module's call and one test, and makes no
/// autograd node.
///
/// With hooks, the module must not change an input that requires grad in place. LibTorch refuses that, with a message
/// about a view made inside a custom function. `forward` has no default arguments, since a signature does not name
/// them. For those, call the block itself, `(*block)(x)`, or its holder, `layer(x)`. FORWARD_HAS_DEFAULT_ARGS works as
/// usual. `clone` copies the module without its hooks.
template <class ModuleImpl, class Signature = typename ForwardOf<ModuleImpl>::Signature>
class Block;

/// The common part of both kinds of forward.
template <class ModuleImpl, class Result, class... Args>
class BlockOf : public ModuleImpl, public BlockCalls {
 public:
  using ModuleImpl::ModuleImpl;

  /// Calls forward; trailing default arguments may be left out.
  template <class... Given>
  requires(sizeof...(Given) <= sizeof...(Args)) Result operator()(Given&&... given) {
    return call_first(std::make_index_sequence<sizeof...(Given)>{}, std::forward<Given>(given)...);
  }

  torch::nn::Module& block_module() override { return *this; }
  std::string block_type() const override { return plain_type_name(c10::demangle_type<ModuleImpl>()); }

 protected:
  template <class... Passed>
  Result call(std::remove_reference_t<Passed>&... passed) {
    if (this->quiet()) return ForwardOf<ModuleImpl>::call(*this, static_cast<Passed&&>(passed)...);
    const auto body = std::make_shared<ModuleBody<ModuleImpl, Result, Passed...>>(*this, passed...);
    this->run_call(body);
    return body->take();
  }

 private:
  // The arguments become what forward declares, in temporaries that live until the call ends.
  template <class... Passed>
  Result convert_and_call(Passed... passed) {
    return call<Passed...>(passed...);
  }
  template <std::size_t... Index, class... Given>
  Result call_first(std::index_sequence<Index...>, Given&&... given) {
    return this->template convert_and_call<std::tuple_element_t<Index, std::tuple<Args...>>...>(
        std::forward<Given>(given)...);
  }
};

template <class ModuleImpl, class Result, class... Args>
class Block<ModuleImpl, Result(Args...)> : public BlockOf<ModuleImpl, Result, Args...> {
 public:
  using BlockOf<ModuleImpl, Result, Args...>::BlockOf;
  Result forward(Args... args) { return this->template call<Args...>(args...); }
};

template <class ModuleImpl, class Result, class... Args>
class Block<ModuleImpl, Result(Args...) const> : public BlockOf<ModuleImpl, Result, Args...> {
 public:
  using BlockOf<ModuleImpl, Result, Args...>::BlockOf;
  Result forward(Args... args) const { return const_cast<Block*>(this)->template call<Args...>(args...); }
};

/// As torch::nn::ModuleHolder; the call passes default arguments on.
template <class ModuleImpl>
class BlockHolder : public torch::nn::ModuleHolder<Block<ModuleImpl>> {
 public:
  using torch::nn::ModuleHolder<Block<ModuleImpl>>::ModuleHolder;
  template <class... Args>
  auto operator()(Args&&... args) {
    return (*this->get())(std::forward<Args>(args)...);
  }
};

}  // namespace troupe

/// Replaces TORCH_MODULE(Name): `Name` holds a NameImpl whose calls strategies may hook.
#define TROUPE_BLOCK(Name)                                     \
  class Name : public ::troupe::BlockHolder<Name##Impl> {      \
   public:                                                     \
    using ::troupe::BlockHolder<Name##Impl>::BlockHolder;      \
    using Impl [[maybe_unused]] = ::troupe::Block<Name##Impl>; \
  }
