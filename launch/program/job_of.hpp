#pragma once
#include <torch/torch.h>

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "launch/program/job.hpp"

namespace troupe {

/// One part of a JobOf: a function of these arguments and the Config or the Rank, one that leaves out both, or a value.
/// Empty until it is given one.
template <class Signature>
class JobPart;

template <class Result, class... Args>
class JobPart<Result(Args...)> {
 public:
  JobPart() = default;
  template <class Given>
  requires(!std::same_as<std::remove_cvref_t<Given>, JobPart>) JobPart(Given&& given) {
    using Part = std::decay_t<Given>;
    if constexpr (std::is_invocable_r_v<Result, const Part&, Args..., const Config&>) {
      call_ = std::forward<Given>(given);
    } else if constexpr (std::is_invocable_r_v<Result, const Part&, Args..., Rank&>) {
      call_ = [part = Part(std::forward<Given>(given))](Args... args, const Config&) -> Result {
        return part(std::forward<Args>(args)..., this_rank());
      };
    } else if constexpr (std::is_invocable_r_v<Result, const Part&, Args...>) {
      call_ = [part = Part(std::forward<Given>(given))](Args... args, const Config&) -> Result {
        return part(std::forward<Args>(args)...);
      };
    } else {
      static_assert(std::is_convertible_v<const Part&, Result>,
                    "a part of a job is a function, with or without a const troupe::Config& or a troupe::Rank& as its "
                    "last argument, or what it would return");
      call_ = [part = Part(std::forward<Given>(given))](Args..., const Config&) -> Result { return part; };
    }
  }
  explicit operator bool() const noexcept { return call_ != nullptr; }
  Result operator()(Args... args, const Config& config) const { return call_(std::forward<Args>(args)..., config); }

 private:
  std::function<Result(Args..., const Config&)> call_;
};

/// The module type of a module holder (TORCH_MODULE); a module class itself.
template <class Net>
struct ModuleOf {
  using Type = Net;
  using Handle = std::shared_ptr<Net>;  ///< the owner
};
template <class Net>
requires requires { typename Net::ContainedType; }
struct ModuleOf<Net> {
  using Type = typename Net::ContainedType;
  using Handle = Net;
};

/// A Job whose model is a Net: a module holder, or a class derived from torch::nn::Module. Every part is a function
/// with or without the config or the rank as its last argument, or, as data mostly is, a value. All simulated ranks
/// share a value. Converts to a Job.
///
///     return troupe::run<Net>(argc, argv, {
///         .data = troupe::Datasets{train, held_out},
///         .loss = [](Net& net, const troupe::Batch& batch) {
///           return torch::nn::functional::cross_entropy(net(batch.input), batch.target);
///         },
///     });
template <class Net>
struct JobOf {
  using Module = typename ModuleOf<Net>::Type;
  using Handle = typename ModuleOf<Net>::Handle;

  /// Default: Module(), or else Module(config).
  JobPart<Handle()> model = {};
  JobPart<Datasets()> data = {};                                      ///< needed
  JobPart<Loss(Net&, const Batch&)> loss = {};                        ///< needed; the net is in train or eval mode
  JobPart<std::unique_ptr<Optimizer>(const Module&)> optimizer = {};  ///< default: as Job's
  std::function<Callbacks(Rank&, Net&)> callbacks = {};               ///< as Job's
  JobPart<ParameterRules()> groups = {};                              ///< for the default optimizer, as Job's
  JobPart<double(std::int64_t step, std::int64_t total_steps)> schedule = {};  ///< as Job's
  std::function<void(Config&)> declare = {};                                   ///< the program's own options

  operator Job() const {
    Job job;
    job.model = make_model();
    if (data) job.data = data;
    if (loss) {
      job.loss = [loss = loss](torch::nn::Module& module, const Batch& batch, const Config& config) {
        return with_net(module, [&](Net& net) { return loss(net, batch, config); });
      };
    }
    if (callbacks) {
      job.callbacks = [callbacks = callbacks](Rank& rank, torch::nn::Module& module) {
        return with_net(module, [&](Net& net) { return callbacks(rank, net); });
      };
    }
    if (optimizer) {
      job.optimizer = [optimizer = optimizer](const torch::nn::Module& module, const Config& config) {
        return optimizer(dynamic_cast<const Module&>(module), config);
      };
    }
    if (groups) job.groups = groups;
    if (schedule) job.schedule = schedule;
    job.declare = declare;
    return job;
  }

 private:
  template <class Work>
  static auto with_net(torch::nn::Module& module, Work&& work) {
    auto* const own = module.as<Module>();
    if (own == nullptr) throw Error(ErrorCode::internal, "job", "the model is of another type than its job");
    if constexpr (std::same_as<Net, Module>) {
      return work(*own);
    } else {
      Net net(std::static_pointer_cast<Module>(own->shared_from_this()));
      return work(net);
    }
  }
  std::function<std::shared_ptr<torch::nn::Module>(const Config&)> make_model() const {
    if (model) {
      return [model = model](const Config& config) -> std::shared_ptr<torch::nn::Module> {
        auto made = model(config);
        if constexpr (std::same_as<Net, Module>) {
          return made;
        } else {
          return made.ptr();
        }
      };
    }
    if constexpr (std::is_default_constructible_v<Module>) {
      return [](const Config&) { return std::make_shared<Module>(); };
    } else if constexpr (std::is_constructible_v<Module, const Config&>) {
      return [](const Config& config) { return std::make_shared<Module>(config); };
    } else {
      return {};
    }
  }
};

/// Runs the job, as run(Job, …) does.
template <class Net>
int run(int argc, char** argv, const JobOf<Net>& job) {
  return run(Job(job), argc, argv);
}

}  // namespace troupe
