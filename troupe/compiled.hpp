#pragma once
// Models that are written in Python and compiled by `troupe compile`.
#include "launch/compiled/compiled_model.hpp"
