#include "tensor_io/communicator/communicator_registry.hpp"

#include "tensor_io/base/error.hpp"

// Without LibTorch: the `troupe` command lists the names. So those that ship are here by name alone.
namespace troupe {
namespace {

Registry<detail::RegisteredCommunicator>& communicator_registry() {
  static Registry<detail::RegisteredCommunicator> registry{
#define TROUPE_COMMUNICATOR(name, description, moves, make) {{name, description}, {nullptr, TensorPlace::moves}},
#include "tensor_io/communicator/shipped_communicators.inc"
#undef TROUPE_COMMUNICATOR
  };
  return registry;
}

}  // namespace

void register_communicator(const std::string& name, const std::string& description, CommunicatorFactory factory,
                           TensorPlace moves) {
  if (!factory) throw Error(ErrorCode::usage, "register_communicator", "back end '" + name + "' has no factory");
  communicator_registry().add(name, description, {std::move(factory), moves});
}

std::vector<RegisteredName> known_communicators() { return communicator_registry().names(); }

std::optional<detail::RegisteredCommunicator> detail::find_communicator(const std::string& name) {
  return communicator_registry().find(name);
}

}  // namespace troupe
