#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "launch/debug/inspection_record.hpp"
#include "launch/debug/inspection_request.hpp"
#include "launch/loop/loop_watch.hpp"

namespace troupe {

/// An inspected run throws this on all ranks in the same step, at the end of the inspection. No std::exception: a
/// program that catches those lets it pass.
struct InspectionOver {};

/// Records a rank's first steps, for troupe debug, and ends the run then. One rank's thread.
class Inspection final : public LoopWatch {
 public:
  Inspection(const Rank& rank, InspectionRequest request, std::map<std::string, std::string> put_aside);
  /// Writes the record, unless it is written: for a run that failed.
  ~Inspection() override;
  Inspection(const Inspection&) = delete;
  Inspection& operator=(const Inspection&) = delete;

  void built(torch::nn::Module& model) override;
  void distributed(Rank& rank) override;
  void batch(const NamedTensors& fields) override;
  void loss(const Loss& loss) override;
  void keeps_checkpoints() override { record_.keeps_checkpoints = true; }
  Optimizer& in_place_of(Optimizer& optimizer) override;
  void loop_ends() override;
  void stepped(Rank& rank, Optimizer& optimizer, const StepReport& report) override;

 private:
  class GradientsInPlace;
  void keep_local_gradients(torch::nn::Module& model);
  void take_gradients(Rank& rank, GradientsInPlace& optimizer);
  [[noreturn]] void end();
  void write() noexcept;

  const InspectionRequest request_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  InspectionRecord record_;
  struct LocalGradient;
  std::vector<std::shared_ptr<LocalGradient>> local_;  // by parameter; hooks hold them, too
  std::int64_t digested_ = 0;                          // bytes of samples
  torch::nn::Module* model_ = nullptr;                 // the program's, from `built` on
  std::map<Optimizer*, std::unique_ptr<GradientsInPlace>> replaced_;
  bool written_ = false;
};

/// `body`, inspected if TROUPE_INSPECT requests it; then `config` is made harmless.
std::function<void(Rank&)> inspected_if_asked(const std::function<void(Rank&)>& body, Config& config);

}  // namespace troupe
