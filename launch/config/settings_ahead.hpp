#pragma once
#include <map>
#include <string>
#include <vector>

namespace troupe {

/// The values of `names` on a program's command line, in its --config file and in the environment, for the launcher,
/// which needs them before it starts the program. The later one wins, as in parse_config. `command`: the program and
/// its arguments. Unreadable ones are passed over: the program itself reports them.
std::map<std::string, std::string> settings_ahead(const std::vector<std::string>& command,
                                                  const std::vector<std::string>& names);

}  // namespace troupe
