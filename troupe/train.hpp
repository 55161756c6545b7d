#pragma once
// A job by its parts (JobOf, Job), or a training loop of your own over a Rank, and their settings (Config).
#include "actors/step/loss.hpp"
#include "launch/config/config.hpp"
#include "launch/loop/rank.hpp"
#include "launch/program/job.hpp"
#include "launch/program/job_of.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/base/trace.hpp"
