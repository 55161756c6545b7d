#include <algorithm>
#include <set>

#include "tensor_io/communicator/choice/hierarchical_communicator.hpp"
#include "tensor_io/communicator/choice/single_communicator.hpp"
#include "tensor_io/communicator/communicator_arguments.hpp"
#include "tensor_io/communicator/gloo/gloo_communicator.hpp"
#include "tensor_io/communicator/group_setup.hpp"
#include "tensor_io/communicator/nccl/nccl_communicator.hpp"
#include "tensor_io/communicator/shm/shm_communicator.hpp"

namespace troupe {

namespace {

constexpr char kDevice = '\n';  // between a host's name and the kind of device

// Out of `hosts`, and refused where ranks differ: auto may choose otherwise on another machine.
void take_devices(const CommunicatorOptions& options, std::vector<std::string>& hosts) {
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const auto cut = hosts[r].rfind(kDevice);
    const auto kind = cut == std::string::npos ? std::string() : hosts[r].substr(cut + 1);
    if (kind != c10::DeviceTypeName(options.device.type())) {
      throw Error(ErrorCode::mismatch, "communicator '" + options.name + "'",
                  "rank " + std::to_string(r) + " on " + hosts[r].substr(0, cut) + " trains on " + kind + ", rank " +
                      std::to_string(options.rank) + " on " + c10::DeviceTypeName(options.device.type()),
                  "say which with --device cpu or --device cuda");
    }
    hosts[r].resize(cut);
  }
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(CommunicatorOptions options) {
  check_options(options);
  if (options.world_size == 1 && options.backend == "nccl" && options.nccl)
    return make_nccl_communicator(std::move(options));
  if (options.world_size == 1) return std::make_unique<SingleCommunicator>(std::move(options));
  if (options.backend == "gloo") return std::make_unique<GlooCommunicator>(std::move(options));

  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  auto hosts = all_gather_at_rendezvous(options, "host",
                                        options.host + kDevice + c10::DeviceTypeName(options.device.type()), deadline);
  take_devices(options, hosts);
  const auto neighbours = std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(options.rank)]);
  options.ranks_on_host = std::max(options.ranks_on_host, static_cast<int>(neighbours));
  if (options.backend == "nccl" || !options.device.is_cpu()) return make_nccl_communicator(std::move(options));
  const std::set<std::string> distinct(hosts.begin(), hosts.end());
  const bool one_host = distinct.size() == 1;
  if (options.backend == "hierarchical" || (options.backend == "auto" && !one_host && distinct.size() < hosts.size())) {
    return std::make_unique<HierarchicalCommunicator>(std::move(options), hosts);
  }
  if (options.backend == "auto" && !one_host) return std::make_unique<GlooCommunicator>(std::move(options));

  std::string why_not = "the ranks are on " + std::to_string(distinct.size()) + " hosts";
  if (one_host) {
    if (auto group = ShmGroup::join(options, &why_not))
      return std::make_unique<ShmCommunicator>(std::move(options), std::move(group));
  }
  if (options.backend == "shm") {
    throw Error(ErrorCode::unavailable, "shared memory for communicator '" + options.name + "'", why_not,
                "use backend = auto, gloo or hierarchical");
  }
  return std::make_unique<GlooCommunicator>(std::move(options));
}

}  // namespace troupe
