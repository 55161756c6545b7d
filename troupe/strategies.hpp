#pragma once
// Strategies and pipeline schedules of your own, actors beside them, and the suite that every strategy passes.
#include "actors/strategy/own_actor.hpp"
#include "actors/strategy/strategy.hpp"
#include "launch/program/strategy_conformance.hpp"
#include "strategies/mesh/pipeline_schedule.hpp"
#include "strategies/replicated/replicated_strategy.hpp"
