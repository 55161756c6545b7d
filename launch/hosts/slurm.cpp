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

[[noreturn]] void refuse_slurm(const std::string& variable, const std::string& cause, const std::string& remedy) {
  throw Error(ErrorCode::usage, "environment variable " + variable, cause, remedy);
}

const std::string kSlurmWrites = "Slurm sets it; unset it if this is not a Slurm job";

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
    refuse_slurm(variable_, "'" + displayable(text_) + "': " + reason, kSlurmWrites);
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
      bad("'" + displayable(range) + "' is not a range of numbers");
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
std::pair<std::string, std::string> first_set(const Get& get, const std::vector<std::string>& names) {
  for (const auto& name : names) {
    const char* value = name.empty() ? nullptr : get(name.c_str());
    if (value != nullptr && *value != '\0') return {name, value};
  }
  return {};
}

std::optional<int> number(const Get& get, const std::string& name, int least, int most) {
  const auto text = first_set(get, {name}).second;
  if (text.empty()) return std::nullopt;
  const auto value = whole(text, least, most);
  if (!value)
    refuse_slurm(name,
                 "'" + displayable(text) + "' is not a whole number from " + std::to_string(least) + " to " +
                     std::to_string(most),
                 kSlurmWrites);
  return static_cast<int>(*value);
}

// Only those of `hosts` that may stand in a host list.
std::vector<Host> checked_hosts(const std::string& variable, const std::vector<std::string>& names,
                                const std::vector<int>& slots) {
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    // The characters that mean something in a list stop here; parse_host_flag judges the rest.
    if (const auto odd = names[i].find_first_of(":,@[]# \t\r\n"); odd != std::string::npos) {
      refuse_slurm(variable,
                   "node '" + displayable(names[i]) + "' has the character '" + displayable({&names[i][odd], 1}) + "'",
                   kSlurmWrites);
    }
    list += (i == 0 ? "" : ",") + names[i] + ":" + std::to_string(slots[i]);
  }
  return parse_host_flag(list, "environment variable " + variable);
}

bool is_set(const Get& get, const std::vector<std::string>& names) { return !first_set(get, names).second.empty(); }

// slurm.h: a batch script, an interactive step and the like have step ids from here on.
constexpr long kFirstSpecialStep = 0xfffffff0L;

// Whether srun has started this process as a task of a step. A script has SLURM_PROCID without a step, salloc's shell
// has neither.
bool is_task(const Get& get) {
  const auto [variable, text] = first_set(get, {"SLURM_STEP_ID", "SLURM_STEPID"});
  if (text.empty()) return false;
  const auto step = whole(text, 0, 0xffffffffL);
  if (!step) refuse_slurm(variable, "'" + displayable(text) + "' is not a step number", kSlurmWrites);
  return *step < kFirstSpecialStep && is_set(get, {"SLURM_PROCID"});
}

// The nodes of a step, of a job, or of one group of a heterogeneous job, which `suffix` names.
std::vector<Host> hosts_of(const Get& get, const std::string& job_variable, bool step, const std::string& suffix) {
  const auto named = [&](const char* name) { return name + suffix; };
  const auto [nodes_variable, nodes] =
      first_set(get, {step ? "SLURM_STEP_NODELIST" : "", named("SLURM_JOB_NODELIST"), named("SLURM_NODELIST")});
  if (nodes.empty())
    refuse_slurm(named("SLURM_JOB_NODELIST"), "it is not set although " + job_variable + " is", kSlurmWrites);
  const auto names = expand_slurm_nodes(nodes, nodes_variable);
  if (auto sorted = names;
      std::sort(sorted.begin(), sorted.end()), std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    refuse_slurm(nodes_variable, "'" + displayable(nodes) + "' names a node twice", kSlurmWrites);
  const auto [tasks_variable, tasks] = first_set(
      get, {step ? "SLURM_STEP_TASKS_PER_NODE" : "", named("SLURM_TASKS_PER_NODE"), named("SLURM_NTASKS_PER_NODE")});
  std::vector<int> slots(names.size(), 1);
  if (!tasks.empty()) {
    slots = expand_slurm_tasks(tasks, tasks_variable);
    if (tasks_variable == named("SLURM_NTASKS_PER_NODE") && slots.size() == 1) slots.assign(names.size(), slots[0]);
    if (slots.size() != names.size()) {
      refuse_slurm(tasks_variable,
                   "'" + displayable(tasks) + "' counts " + std::to_string(slots.size()) + " nodes, " + nodes_variable +
                       " '" + displayable(nodes) + "' names " + std::to_string(names.size()),
                   kSlurmWrites);
    }
  }
  return checked_hosts(nodes_variable, names, slots);
}

// Which of the hosts this is, and which task.
void place(const Get& get, bool task, SlurmAllocation& allocation) {
  const auto& hosts = allocation.hosts;
  const int nodes = static_cast<int>(hosts.size());
  const char* own = get("SLURMD_NODENAME");
  if (const auto node = task ? number(get, "SLURM_NODEID", 0, nodes - 1) : std::nullopt) {
    allocation.node = *node;
  } else if (own != nullptr) {
    std::string name(own);
    for (auto& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const auto found = std::find_if(hosts.begin(), hosts.end(), [&](const Host& host) { return host.name == name; });
    if (found == hosts.end())
      refuse_slurm("SLURMD_NODENAME", "'" + displayable(own) + "' is not among the job's nodes", kSlurmWrites);
    allocation.node = static_cast<int>(found - hosts.begin());
  }
  if (!task) return;
  const auto restarts = whole(first_set(get, {"SLURM_RESTART_COUNT"}).second, 0, 1 << 20).value_or(0);
  allocation.step = allocation.job_id + "." + first_set(get, {"SLURM_STEP_ID", "SLURM_STEPID"}).second + "." +
                    std::to_string(restarts);
  int tasks = 0;
  for (const auto& host : hosts) tasks += host.slots;
  allocation.rank = *number(get, "SLURM_PROCID", 0, tasks - 1);
  allocation.local_rank =
      number(get, "SLURM_LOCALID", 0, hosts[static_cast<std::size_t>(allocation.node)].slots - 1).value_or(0);
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
      refuse_slurm(variable,
                   "'" + displayable(all) + "': '" + displayable(part) + "' is not a count of tasks such as 2 or 2(x3)",
                   kSlurmWrites);
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(*times), static_cast<int>(*count));
  }
  return tasks;
}

std::optional<SlurmAllocation> read_slurm(const Get& given) {
  const Get get = given ? given : Get([](const char* name) { return std::getenv(name); });
  const auto [job_variable, job] = first_set(get, {"SLURM_JOB_ID", "SLURM_JOBID"});
  if (job.empty()) return std::nullopt;
  SlurmAllocation allocation;
  allocation.job_id = job;
  const bool task = is_task(get);
  const int groups = task ? 1 : number(get, "SLURM_HET_SIZE", 1, kMaxHosts).value_or(1);
  for (int group = 0; group < groups; ++group) {
    const auto suffix = groups > 1 ? "_HET_GROUP_" + std::to_string(group) : std::string();
    for (auto& host : hosts_of(get, job_variable, task, suffix)) {
      const auto same = std::find_if(allocation.hosts.begin(), allocation.hosts.end(),
                                     [&](const Host& other) { return other.name == host.name; });
      if (same == allocation.hosts.end()) {
        allocation.hosts.push_back(std::move(host));
      } else {
        same->slots += host.slots;  // two groups share a node
      }
    }
    const bool asked =
        is_set(get, {"SLURM_NTASKS" + suffix, "SLURM_NPROCS" + suffix, "SLURM_NTASKS_PER_NODE" + suffix});
    allocation.counts_cpus = allocation.counts_cpus || !(task || asked);
  }
  allocation.gpus = number(get, "SLURM_GPUS_ON_NODE", 1, kMaxSlots).value_or(0);
  if (const char* end = get("SLURM_JOB_END_TIME"); end != nullptr && *end != '\0' && *end != '0') {
    allocation.end_time = whole(end, 1, 1L << 40);
    if (!allocation.end_time)
      refuse_slurm("SLURM_JOB_END_TIME", "'" + displayable(end) + "' is not a time", kSlurmWrites);
  }
  place(get, task, allocation);
  return allocation;
}

}  // namespace troupe
