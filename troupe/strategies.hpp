#pragma once
// Your own strategies and pipeline schedules, actors beside them, and the suite that every strategy passes.
#include "actors/strategy/own_actor.hpp"
#include "actors/strategy/strategy.hpp"
#include "launch/program/strategy_conformance.hpp"
#include "strategies/mesh/pipeline_schedule.hpp"
#include "strategies/replicated/replicated_strategy.hpp"
