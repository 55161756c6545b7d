#pragma once
#include <map>
#include <string>
#include <vector>

namespace troupe {

/// What a program's command line, its --config file and the environment say of `names`, for the launcher, which needs
/// it before it starts the program. The later one wins, as in parse_config. `command`: the program and its arguments.
/// What can't be read is passed over: the program itself says what is wrong with it.
std::map<std::string, std::string> settings_ahead(const std::vector<std::string>& command,
                                                  const std::vector<std::string>& names);

}  // namespace troupe
