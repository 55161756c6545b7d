#pragma once
#include <gloo/common/error.h>

#include <chrono>

#include "tensor_io/communicator/gloo/gloo_communicator.hpp"

namespace troupe {

template <class Work>
void GlooCommunicator::guarded(const CollectiveRecord& record, Work&& work) {
  if (auto reason = broken()) throw Error(*reason);  // aborted between the check of the call and here
  try {
    work();
  } catch (const gloo::Exception& error) {
    // Gloo says it in words only: "Timed out waiting 1000ms for recv operation to complete".
    const std::string what = error.what();
    throw Error(explain(record, what.find("imed out") != std::string::npos, what));
  }
}

}  // namespace troupe
