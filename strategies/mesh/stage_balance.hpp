#pragma once
#include <string_view>
#include <vector>

namespace troupe {

/// Cuts a chain of blocks into `stages` runs of neighbours, none empty, so that the most expensive run costs as little
/// as possible. Among such cuts it takes the one whose costs differ least (sum of squares). Returns stages + 1 borders:
/// stage s has the blocks [borders[s], borders[s + 1]). A pure function; the time is blocks² x stages. Throws
/// Error(usage) for more stages than blocks, or a cost below 0.
std::vector<int> balance_stages(const std::vector<double>& costs, int stages);

/// `1,1,2.5`: a cost for each of `blocks` blocks. Throws Error(usage) naming the item that is no cost, or the number of
/// items.
std::vector<double> parse_costs(std::string_view text, std::size_t blocks);

}  // namespace troupe
