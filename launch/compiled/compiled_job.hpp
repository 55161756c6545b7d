#pragma once
#include <string>

#include "launch/program/job.hpp"

namespace troupe {

/// The job of `troupe train`: the compiled model of `--model FILE` on the data set that the config names. Settings that
/// cannot hold for a compiled model are refused before the first step.
Job compiled_job();

/// `troupe train gradients MODEL BATCH OUT`, for `troupe compile --check`: one forward and backward on the fields of
/// BATCH, a safetensors file, in train mode. OUT is one, too: `loss`, `count` and `correct` if there are such,
/// `gradient:NAME` of each parameter that has one, `buffer:NAME` after it, and `mask:N` of each dropout in turn.
void write_gradients(const std::string& model, const std::string& batch, const std::string& out);

}  // namespace troupe
