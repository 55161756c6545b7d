#include "launch/hosts/slurm.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "launch/process/displayable.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using Get = std::function<const char*(const char*)>;

[[noreturn]] void refuse(const std::string& variable, const std::string& cause, const std::string& remedy) {
  throw Error(ErrorCode::usage, "environment variable " + variable, cause, remedy);
}

const std::string kSlurmWrites = "Slurm sets it; unset it if this is no Slurm job";

std::optional<long> whole(std::string_view text, long minimum, long maximum) {
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < minimum || value > maximum)
    return std::nullopt;
  return value;
}

// One list `node[1-3]r[0-1]`: the text is copied in front of every number of its first brackets, and so on.
class NodeExpansion {
 public:
  NodeExpansion(std::string_view text, const std::string& variable) : text_(text), variable_(variable) {}

  std::vector<std::string> run() {
    std::size_t begin = 0;
    int depth = 0;
    for (std::size_t i = 0; i <= text_.size(); ++i) {
      const char c = i < text_.size() ? text_[i] : ',';
      if (c == '[' && ++depth > 1) bad("it has brackets in brackets");
      if (c == ']' && --depth < 0) bad("it has a ']' without '['");
      if (c != ',' || (depth > 0 && i < text_.size())) continue;
      if (depth > 0) bad("it has a '[' without ']'");
      if (i == begin) bad("it has an empty name");
      expand({}, text_.substr(begin, i - begin));
      begin = i + 1;
    }
    return std::move(names_);
  }

 private:
  [[noreturn]] void bad(const std::string& reason) const {
    refuse(variable_, "'" + displayable(text_) + "': " + reason, kSlurmWrites);
  }

  void expand(const std::string& prefix, std::string_view rest) {
    const auto open = rest.find('[');
    if (open == std::string_view::npos) {
      if (names_.size() == kMaxHosts) bad("it has more than " + std::to_string(kMaxHosts) + " nodes");
      names_.push_back(prefix + std::string(rest));
      return;
    }
    const auto close = rest.find(']');
    const auto head = prefix + std::string(rest.substr(0, open));
    auto ranges = rest.substr(open + 1, close - open - 1);
    for (bool more = true; more;) {
      const auto comma = ranges.find(',');
      more = comma != std::string_view::npos;
      const auto range = ranges.substr(0, comma);
      if (more) ranges.remove_prefix(comma + 1);
      expand_range(head, range, rest.substr(close + 1));
    }
  }

  void expand_range(const std::string& head, std::string_view range, std::string_view tail) {
    const auto dash = range.find('-');
    const auto low_text = range.substr(0, dash),
               high_text = dash == std::string_view::npos ? low_text : range.substr(dash + 1);
    const auto low = whole(low_text, 0, 999'999'999), high = whole(high_text, 0, 999'999'999);
    if (!low || !high || *low > *high || low_text.size() > 9)
      bad("'" + displayable(range) + "' is no range of numbers");
    if (*high - *low >= kMaxHosts) bad("it has more than " + std::to_string(kMaxHosts) + " nodes");
    for (long number = *low; number <= *high; ++number) {
      auto digits = std::to_string(number);
      if (digits.size() < low_text.size()) digits.insert(0, low_text.size() - digits.size(), '0');
      expand(head + digits, tail);
    }
  }

  std::string_view text_;
  const std::string& variable_;
  std::vector<std::string> names_;
};

// The first of these variables that is set, and which.
std::pair<std::string, std::string> first_set(const Get& get, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = get(name); value != nullptr && *value != '\0') return {name, value};
  }
  return {};
}

std::optional<int> index_of(const Get& get, const char* name, int below) {
  const char* text = get(name);
  if (text == nullptr) return std::nullopt;
  const auto value = whole(text, 0, below - 1);
  if (!value)
    refuse(name, "'" + displayable(text) + "' is no whole number from 0 to " + std::to_string(below - 1), kSlurmWrites);
  return static_cast<int>(*value);
}

// Only those of `hosts` that may stand in a host list.
std::vector<Host> checked_hosts(const std::string& variable, const std::vector<std::string>& names,
                                const std::vector<int>& slots) {
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    // The characters that mean something in a list stop here; parse_host_flag judges the rest.
    if (const auto odd = names[i].find_first_of(":,@[]# \t\r\n"); odd != std::string::npos) {
      refuse(variable,
             "node '" + displayable(names[i]) + "' has the character '" + displayable({&names[i][odd], 1}) + "'",
             kSlurmWrites);
    }
    list += (i == 0 ? "" : ",") + names[i] + ":" + std::to_string(slots[i]);
  }
  return parse_host_flag(list, "environment variable " + variable);
}

}  // namespace

std::vector<std::string> expand_slurm_nodes(std::string_view text, const std::string& variable) {
  return NodeExpansion(text, variable).run();
}

std::vector<int> expand_slurm_tasks(std::string_view text, const std::string& variable) {
  std::vector<int> tasks;
  const auto all = text;
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    more = comma != std::string_view::npos;
    const auto part = text.substr(0, comma);
    if (more) text.remove_prefix(comma + 1);
    const auto open = part.find("(x");
    const auto count = whole(part.substr(0, open), 1, kMaxSlots);
    const bool repeated = open != std::string_view::npos;
    const auto times = !repeated             ? 1
                       : part.ends_with(')') ? whole(part.substr(open + 2, part.size() - open - 3), 1, kMaxHosts)
                                             : std::nullopt;
    if (!count || !times || tasks.size() + static_cast<std::size_t>(*times) > kMaxHosts) {
      refuse(variable, "'" + displayable(all) + "': '" + displayable(part) + "' is no count of tasks like 2 or 2(x3)",
             kSlurmWrites);
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(*times), static_cast<int>(*count));
  }
  return tasks;
}

std::optional<SlurmAllocation> read_slurm(const Get& given) {
  const Get get = given ? given : Get([](const char* name) { return std::getenv(name); });
  const auto [job_variable, job] = first_set(get, {"SLURM_JOB_ID", "SLURM_JOBID"});
  const auto [nodes_variable, nodes] = first_set(get, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (job.empty()) return std::nullopt;
  if (nodes.empty()) refuse("SLURM_JOB_NODELIST", "it is not set although " + job_variable + " is", kSlurmWrites);
  SlurmAllocation allocation;
  allocation.job_id = job;
  const auto names = expand_slurm_nodes(nodes, nodes_variable);
  const auto [tasks_variable, tasks] =
      first_set(get, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"});
  std::vector<int> slots(names.size(), 1);
  if (!tasks.empty()) {
    slots = expand_slurm_tasks(tasks, tasks_variable);
    if (tasks_variable == "SLURM_NTASKS_PER_NODE" && slots.size() == 1) slots.assign(names.size(), slots[0]);
    if (slots.size() != names.size()) {
      refuse(tasks_variable,
             "'" + displayable(tasks) + "' counts " + std::to_string(slots.size()) + " nodes, " + nodes_variable +
                 " '" + displayable(nodes) + "' names " + std::to_string(names.size()),
             kSlurmWrites);
    }
  }
  allocation.hosts = checked_hosts(nodes_variable, names, slots);
  const int count = static_cast<int>(names.size());
  if (const auto node = index_of(get, "SLURM_NODEID", count)) {
    allocation.node = *node;
  } else if (const char* own = get("SLURMD_NODENAME")) {
    const auto found = std::find(names.begin(), names.end(), own);
    if (found == names.end())
      refuse("SLURMD_NODENAME",
             "'" + displayable(own) + "' is not in " + nodes_variable + " '" + displayable(nodes) + "'", kSlurmWrites);
    allocation.node = static_cast<int>(found - names.begin());
  }
  int ranks = 0;
  for (const int n : slots) ranks += n;
  allocation.rank = index_of(get, "SLURM_PROCID", ranks).value_or(-1);
  allocation.local_rank = index_of(get, "SLURM_LOCALID", slots[static_cast<std::size_t>(allocation.node)]).value_or(-1);
  return allocation;
}

}  // namespace troupe
