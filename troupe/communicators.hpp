#pragma once
// Communicators: collectives for your own use, your own back ends, and the suite that every back end passes.
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/communicator/communicator_registry.hpp"
#include "tensor_io/communicator/conformance/communicator_conformance.hpp"
