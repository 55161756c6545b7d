#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensor_io/base/registry.hpp"

namespace troupe {

class Communicator;
struct CommunicatorOptions;

/// Makes this rank's communicator of a group. Collective: every rank of the group calls it with the same options but
/// `rank`, `host` and `interface_address`. A group has at least two ranks. They find each other by
/// `options.rendezvous`, with keys that begin with `options.name`. Called on the thread that requests the communicator:
/// at the start of the job, after a rank has died, and for each group that split() makes. Throws Error(timeout) if a
/// rank does not come within `options.timeout`, Error(unavailable) if the back end cannot work here.
using CommunicatorFactory = std::function<std::unique_ptr<Communicator>(CommunicatorOptions options)>;

/// The tensors that a back end moves: the CPU's, those of a device (GPU), or both. A job with another `device` is
/// refused before the first rank waits.
enum class TensorPlace : std::uint8_t { cpu, device, any };

/// Adds a back end for `--backend NAME`; the config allows the name from then on, and --help shows `description` (one
/// line). Before troupe::run or troupe::main, in every process of the job. A name that is registered already is
/// replaced. A group of one rank gets a communicator of one whatever its back end. `auto` never chooses a back end that
/// was registered. Any thread. Throws Error(usage) for an empty factory.
void register_communicator(const std::string& name, const std::string& description, CommunicatorFactory factory,
                           TensorPlace moves = TensorPlace::cpu);

/// The shipped ones, then the registered ones, each in the order of registration. Any thread.
std::vector<RegisteredName> known_communicators();

namespace detail {
struct RegisteredCommunicator {
  CommunicatorFactory factory;  // empty: it ships, and make_communicator.cpp makes it
  TensorPlace moves = TensorPlace::cpu;
};
/// Nothing: the name is unknown.
std::optional<RegisteredCommunicator> find_communicator(const std::string& name);
}  // namespace detail

}  // namespace troupe
