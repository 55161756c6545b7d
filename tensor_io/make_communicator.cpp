#include <set>

#include "tensor_io/communicator_arguments.hpp"
#include "tensor_io/gloo_communicator.hpp"
#include "tensor_io/group_setup.hpp"
#include "tensor_io/hierarchical_communicator.hpp"
#include "tensor_io/nccl_communicator.hpp"
#include "tensor_io/shm_communicator.hpp"
#include "tensor_io/single_communicator.hpp"

namespace troupe {

std::unique_ptr<Communicator> make_communicator(CommunicatorOptions options) {
  check_options(options);
  if (options.world_size == 1) return std::make_unique<SingleCommunicator>(std::move(options));
  if (options.backend == "nccl" || !options.device.is_cpu()) return make_nccl_communicator(std::move(options));
  if (options.backend == "gloo") return std::make_unique<GlooCommunicator>(std::move(options));

  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  const auto hosts = exchange(options, "host", options.host, deadline);
  const std::set<std::string> distinct(hosts.begin(), hosts.end());
  const bool one_host = distinct.size() == 1;
  if (options.backend == "hierarchical" || (options.backend == "auto" && !one_host && distinct.size() < hosts.size())) {
    return std::make_unique<HierarchicalCommunicator>(std::move(options), hosts);
  }
  if (options.backend == "auto" && !one_host) return std::make_unique<GlooCommunicator>(std::move(options));

  std::string why_not = "the ranks are on " + std::to_string(distinct.size()) + " hosts";
  if (one_host) {
    if (auto group = ShmGroup::join(options, &why_not)) return std::make_unique<ShmCommunicator>(std::move(options), std::move(group));
  }
  if (options.backend == "shm") {
    throw Error(ErrorCode::unavailable, "shared memory for communicator '" + options.name + "'", why_not,
                "use backend = auto, gloo or hierarchical");
  }
  return std::make_unique<GlooCommunicator>(std::move(options));
}

}  // namespace troupe
