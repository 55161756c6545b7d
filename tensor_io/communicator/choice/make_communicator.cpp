#include <algorithm>
#include <set>

#include "tensor_io/communicator/choice/hierarchical_communicator.hpp"
#include "tensor_io/communicator/choice/single_communicator.hpp"
#include "tensor_io/communicator/communicator_arguments.hpp"
#include "tensor_io/communicator/communicator_registry.hpp"
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
                  "set --device cpu or --device cuda on every rank");
    }
    hosts[r].resize(cut);
  }
}

// By rank. What `options` says of the host's ranks follows from it.
std::vector<std::string> gather_hosts(CommunicatorOptions& options) {
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  auto hosts = all_gather_at_rendezvous(options, "host",
                                        options.host + kDevice + c10::DeviceTypeName(options.device.type()), deadline);
  take_devices(options, hosts);
  const auto neighbours = std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(options.rank)]);
  options.ranks_on_host = std::max(options.ranks_on_host, static_cast<int>(neighbours));
  return hosts;
}

std::size_t count_hosts(const std::vector<std::string>& hosts) {
  return std::set<std::string>(hosts.begin(), hosts.end()).size();
}

// Empty, and why, if the ranks have no memory in common.
std::unique_ptr<Communicator> join_shm(CommunicatorOptions& options, std::string* why_not) {
  auto group = ShmGroup::join(options, why_not);
  return group ? std::make_unique<ShmCommunicator>(std::move(options), std::move(group)) : nullptr;
}

}  // namespace

#define TROUPE_COMMUNICATOR(name, description, moves, make) \
  std::unique_ptr<Communicator> make(CommunicatorOptions options);
#include "tensor_io/communicator/shipped_communicators.inc"
#undef TROUPE_COMMUNICATOR

std::unique_ptr<Communicator> make_auto(CommunicatorOptions options) {
  const auto hosts = gather_hosts(options);
  if (!options.device.is_cpu()) return make_nccl_communicator(std::move(options));
  const auto host_count = count_hosts(hosts);
  if (host_count == 1) {
    std::string why_not;
    if (auto made = join_shm(options, &why_not)) return made;
  } else if (host_count < hosts.size()) {
    return std::make_unique<HierarchicalCommunicator>(std::move(options), hosts);
  }
  return std::make_unique<GlooCommunicator>(std::move(options));
}

std::unique_ptr<Communicator> make_shm(CommunicatorOptions options) {
  const auto host_count = count_hosts(gather_hosts(options));
  std::string why_not = "the ranks are on " + std::to_string(host_count) + " hosts";
  if (host_count == 1) {
    if (auto made = join_shm(options, &why_not)) return made;
  }
  throw Error(ErrorCode::unavailable, "shared memory for communicator '" + options.name + "'", why_not,
              "use backend = auto, gloo or hierarchical");
}

std::unique_ptr<Communicator> make_gloo(CommunicatorOptions options) {
  return std::make_unique<GlooCommunicator>(std::move(options));
}

std::unique_ptr<Communicator> make_hierarchical(CommunicatorOptions options) {
  const auto hosts = gather_hosts(options);
  return std::make_unique<HierarchicalCommunicator>(std::move(options), hosts);
}

std::unique_ptr<Communicator> make_nccl(CommunicatorOptions options) {
  if (options.world_size > 1) gather_hosts(options);
  return make_nccl_communicator(std::move(options));
}

static std::unique_ptr<Communicator> make_shipped(CommunicatorOptions options) {
#define TROUPE_COMMUNICATOR(name, description, moves, make) \
  if (options.backend == (name)) return make(std::move(options));
#include "tensor_io/communicator/shipped_communicators.inc"
#undef TROUPE_COMMUNICATOR
  throw Error(ErrorCode::internal, "communicator '" + options.name + "'",
              "back end " + options.backend + " was registered without a factory");
}

std::unique_ptr<Communicator> make_communicator(CommunicatorOptions options) {
  check_options(options);
  const bool single_nccl = options.backend == "nccl" && options.nccl;
  if (options.world_size == 1 && !single_nccl) return std::make_unique<SingleCommunicator>(std::move(options));
  const auto factory = detail::find_communicator(options.backend)->factory;
  return factory ? factory(std::move(options)) : make_shipped(std::move(options));
}

}  // namespace troupe
