#include "launch/observe/trace_json.hpp"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "launch/process/formatted.hpp"

namespace troupe {
namespace {

using EventKind = TraceEvent::Kind;

constexpr std::string_view kCompute = "compute";
constexpr int kRowsOfTrack = 100;        // thread numbers of a track
constexpr int kKernelThreads = 100'000;  // and of the streams

std::string json_text(std::string_view text) {
  return nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string us_text(std::int64_t ns) {
  return formatted("%lld.%03lld", static_cast<long long>(ns / 1000), static_cast<long long>(ns % 1000));
}

// By their names, as HolisticTraceAnalysis tells them apart, too.
bool is_communication(const TraceEvent& kernel) { return std::string_view(kernel.name.data()).starts_with("nccl"); }
bool is_copy(const TraceEvent& kernel) { return std::string_view(kernel.name.data()).starts_with("Memcpy"); }
bool is_fill(const TraceEvent& kernel) { return std::string_view(kernel.name.data()).starts_with("Memset"); }
bool is_computation(const TraceEvent& kernel) {
  return !is_communication(kernel) && !is_copy(kernel) && !is_fill(kernel);
}

const char* category_of(const TraceEvent& event) {
  switch (event.kind) {
    case EventKind::step:
    case EventKind::user: return "user_annotation";
    case EventKind::phase: return "phase";
    case EventKind::wait: return "wait";
    case EventKind::collective: return "collective";
    case EventKind::block: return "block";
    case EventKind::operation: return "cpu_op";
    case EventKind::launch: return "cuda_runtime";
    case EventKind::kernel: return is_copy(event) ? "gpu_memcpy" : is_fill(event) ? "gpu_memset" : "kernel";
    default: return "actor";
  }
}

// all_reduce -> AllReduce, as NCCL's kernels are called.
std::string camel_case(std::string_view words) {
  std::string text;
  bool first = true;
  for (const char c : words) {
    if (c == '_') {
      first = true;
    } else {
      text += first ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
      first = false;
    }
  }
  return text;
}

bool computes(const TraceEvent& event) {
  const std::string_view name = event.name.data();
  return event.kind == EventKind::phase && (name.starts_with("forward") || name == "backward" || name == "optimizer");
}
bool moves_tensors(const TraceEvent& event) {
  const std::string_view name = event.name.data();
  return event.kind == EventKind::collective && name != "allocate" && name != "split";
}

/// A track's spans, each in a row where it lies within or beside the others.
struct Rows {
  struct Span {
    TraceEvent event;
    int row = 0;
  };
  std::vector<Span> spans;  // by begin, the longer one first
  int count = 0;

  explicit Rows(std::vector<TraceEvent> events) {
    std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) {
      return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
    });
    std::vector<std::vector<std::int64_t>> open;  // by row: the ends of spans that go on
    for (const auto& event : events) {
      std::size_t row = 0;
      for (; row < open.size(); ++row) {
        auto& ends = open[row];
        while (!ends.empty() && ends.back() <= event.begin_ns) ends.pop_back();
        if (ends.empty() || event.end_ns <= ends.back()) break;
      }
      if (row == open.size()) open.emplace_back();
      open[row].push_back(event.end_ns);
      spans.push_back({event, static_cast<int>(row)});
    }
    count = static_cast<int>(open.size());
    // The longest span of those that began before, by row, so that row_at need not look at all of them.
    reach.assign(spans.size(), 0);
    std::map<int, std::int64_t> longest;
    for (std::size_t i = 0; i < spans.size(); ++i)
      reach[i] = longest[spans[i].row] = std::max(longest[spans[i].row], spans[i].event.end_ns);
  }
  /// A row with a span at that time, or -1.
  int row_at(std::int64_t ns) const {
    std::set<int> seen;
    auto i =
        static_cast<std::size_t>(std::upper_bound(spans.begin(), spans.end(), ns,
                                                  [](std::int64_t t, const Span& s) { return t < s.event.begin_ns; }) -
                                 spans.begin());
    while (i-- > 0 && seen.size() < static_cast<std::size_t>(count)) {
      if (!seen.insert(spans[i].row).second) continue;
      if (reach[i] > ns) return spans[i].row;
    }
    return -1;
  }
  std::vector<std::int64_t> reach;
};

class Writer {
 public:
  explicit Writer(const TraceSource& source) : source_(source) {}

  std::string take() { return std::move(text_); }
  std::int64_t count() const { return count_; }

  void metadata(const char* what, int thread, const std::string& arguments) {
    line(R"({"ph":"M","name":")" + std::string(what) + R"(","pid":)" + std::to_string(source_.rank) + R"(,"tid":)" +
         std::to_string(thread) + R"(,"args":{)" + arguments + "}}");
  }
  void name_thread(int thread, const std::string& name) {
    metadata("thread_name", thread, "\"name\":" + json_text(name));
    metadata("thread_sort_index", thread, "\"sort_index\":" + std::to_string(thread));
  }
  void span(const TraceEvent& event, int thread) {
    std::string name = event.name.data(), arguments;
    const auto argument = [&](const char* key, const std::string& value) {
      arguments += (arguments.empty() ? "\"" : ",\"") + std::string(key) + "\":" + value;
    };
    if (event.stream >= 0) argument("device", "0"), argument("stream", std::to_string(event.stream));
    if (event.correlation >= 0) argument("correlation", std::to_string(event.correlation));
    if (event.kind == EventKind::kernel && is_communication(event)) argument("communication", "true");
    if (event.detail[0] != '\0') name += " (" + std::string(event.detail.data()) + ")";
    if (event.numel >= 0) argument("numel", std::to_string(event.numel));
    if (event.dtype >= 0) argument("dtype", json_text(c10::toString(static_cast<c10::ScalarType>(event.dtype))));
    if (event.step >= 0) argument("step", std::to_string(event.step));
    line(R"({"ph":"X","cat":")" + std::string(category_of(event)) + R"(","name":)" + json_text(name) +
         place(event.begin_ns, thread) + R"(,"dur":)" + us_text(event.end_ns - event.begin_ns) + R"(,"args":{)" +
         arguments + "}}");
    ++count_;
  }
  struct End {
    int thread = 0;
    std::int64_t ns = 0;
  };
  void arrow(const char* category, const std::string& name, End from, End to) {
    const auto common = R"(,"cat":")" + std::string(category) + R"(","name":)" + json_text(name) + R"(,"id":)" +
                        std::to_string(source_.rank * 10'000'000LL + ++arrows_);
    line(R"({"ph":"s")" + common + place(from.ns, from.thread) + "}");
    line(R"({"ph":"f","bp":"e")" + common + place(to.ns, to.thread) + "}");
    ++count_;
  }

 private:
  std::string place(std::int64_t ns, int thread) const {
    return ",\"pid\":" + std::to_string(source_.rank) + ",\"tid\":" + std::to_string(thread) +
           ",\"ts\":" + us_text(ns + source_.offset_ns);
  }
  void line(const std::string& object) { text_ += (text_.empty() ? "" : ",\n") + object; }

  const TraceSource& source_;
  std::string text_;
  std::int64_t arrows_ = 0, count_ = 0;
};

// Whether it may be a kernel of that collective: `ncclDevKernel_AllReduce_Sum_f32_RING_LL`,
// `ncclSymkDevKernel_AllGather_ST`, and those that NCCL has for several of them.
bool is_kernel_of(const TraceEvent& kernel, std::string_view collective) {
  const std::string_view name = kernel.name.data();
  const auto at = name.find("Kernel_");
  if (!is_communication(kernel) || at == std::string_view::npos) return false;
  const auto what = name.substr(at + 7);
  return what.starts_with(camel_case(collective) + "_") || what.starts_with("Generic") || what.starts_with("SendRecv");
}

/// Where launches and collectives stand, for the arrows to what they started on a device.
class Starts {
 public:
  void add(const TraceEvent& event, int thread) {
    if (event.kind == EventKind::launch && event.correlation >= 0)
      launches_[event.correlation] = {thread, event.begin_ns};
    if (moves_tensors(event)) collectives_.emplace(event.begin_ns, Collective{event.end_ns, event.name.data(), thread});
  }
  /// From the call that launched it. NCCL's also from the span of the actor that asked for it, the last one that had
  /// begun: NCCL launches from a thread of its own, while that span lasts.
  void join(const TraceEvent& kernel, int thread, Writer& writer) const {
    const auto launch = launches_.find(kernel.correlation);
    if (kernel.correlation < 0 || launch == launches_.end()) return;
    const Writer::End end{thread, kernel.begin_ns};
    const auto at = launch->second.ns;
    writer.arrow("ac2g", "ac2g", launch->second, end);
    if (!is_communication(kernel)) return;
    auto collective = collectives_.upper_bound(at);
    for (int looked = 0; looked < kThreads && collective != collectives_.begin(); ++looked) {
      --collective;
      const auto& [end_ns, name, its_thread] = collective->second;
      if (at <= end_ns && is_kernel_of(kernel, name))
        return writer.arrow("collective", "collective", {its_thread, at}, end);
    }
  }

 private:
  static constexpr int kThreads = 8;  // that may be in collectives at a time
  struct Collective {
    std::int64_t end_ns;
    std::string name;
    int thread;
  };
  std::map<std::int64_t, Writer::End> launches_;         // by correlation
  std::multimap<std::int64_t, Collective> collectives_;  // by begin
};

using Tracks = std::vector<std::pair<std::string, std::vector<TraceEvent>>>;

std::vector<TraceInterval> intervals_of(const std::vector<TraceEvent>& events, bool (*wanted)(const TraceEvent&)) {
  std::vector<TraceInterval> intervals;
  for (const auto& event : events) {
    if (wanted(event)) intervals.emplace_back(event.begin_ns, event.end_ns);
  }
  return merge_intervals(std::move(intervals));
}

/// Kernels in the place of a device's, and their launches on the tracks.
class Substitutes {
 public:
  explicit Substitutes(Tracks& tracks) {
    for (auto& [name, events] : tracks) {
      std::vector<TraceEvent> launches;
      if (name == kCompute) {
        const auto waits = intervals_of(
            events, [](const TraceEvent& e) { return e.kind == EventKind::wait || e.kind == EventKind::collective; });
        for (const auto& event : events) {
          if (!computes(event)) continue;
          for (const auto& [begin, end] : subtract_intervals({{event.begin_ns, event.end_ns}}, waits))
            add(event, begin, end, 0, launches);
        }
      } else if (std::any_of(events.begin(), events.end(), moves_tensors)) {
        ++streams_;
        for (auto event : events) {
          if (!moves_tensors(event)) continue;
          event.set_name("ncclDevKernel_" + camel_case(event.name.data()));
          add(event, event.begin_ns, event.end_ns, streams_, launches);
        }
        names_[streams_] = name + "'s communicators";
      }
      events.insert(events.end(), launches.begin(), launches.end());
    }
    names_[0] = "compute, as kernels";
  }
  std::vector<TraceEvent> kernels;
  const std::map<int, std::string>& names() const { return names_; }

 private:
  void add(TraceEvent event, std::int64_t begin, std::int64_t end, int stream, std::vector<TraceEvent>& launches) {
    if (end <= begin) return;
    TraceEvent launch;
    launch.kind = EventKind::launch;
    launch.set_name("cudaLaunchKernel");
    launch.begin_ns = launch.end_ns = begin;
    launch.correlation = ++correlations_;
    launches.push_back(launch);
    event.kind = EventKind::kernel;
    event.begin_ns = begin;
    event.end_ns = end;
    event.stream = stream;
    event.correlation = launch.correlation;
    kernels.push_back(event);
  }
  std::int64_t correlations_ = 0;
  int streams_ = 0;
  std::map<int, std::string> names_;
};

void count_steps(const std::vector<TraceEvent>& events, TraceTotals& totals) {
  for (const auto& event : events) {
    if (event.kind != EventKind::step) continue;
    const char* number = std::strchr(event.name.data(), '#');
    const auto step = number == nullptr ? -1 : std::atoll(number + 1);
    totals.first_step = totals.first_step < 0 ? step : std::min<std::int64_t>(totals.first_step, step);
    totals.last_step = std::max<std::int64_t>(totals.last_step, step);
  }
}

// The compute track on top, then those that it feeds.
void sort_tracks(Tracks& tracks) {
  const auto place = [](const std::string& name) {
    static constexpr std::string_view kOrder[] = {kCompute,  "blocks",   "operators",  "reducer",
                                                  "gathers", "launches", "data loader"};
    return std::find(std::begin(kOrder), std::end(kOrder), name) - std::begin(kOrder);
  };
  std::stable_sort(tracks.begin(), tracks.end(),
                   [&](const auto& a, const auto& b) { return place(a.first) < place(b.first); });
}

std::vector<TraceEvent> kernels_in(Tracks& tracks) {
  std::vector<TraceEvent> kernels;
  for (auto& [name, events] : tracks) {
    for (const auto& event : events) {
      if (event.kind == EventKind::kernel) kernels.push_back(event);
    }
    std::erase_if(events, [](const auto& event) { return event.kind == EventKind::kernel; });
  }
  return kernels;
}

}  // namespace

void TraceTotals::add(const TraceTotals& other) {
  events += other.events;
  dropped += other.dropped;
  if (other.first_step >= 0) first_step = first_step < 0 ? other.first_step : std::min(first_step, other.first_step);
  last_step = std::max(last_step, other.last_step);
  collectives_ns += other.collectives_ns;
  hidden_ns += other.hidden_ns;
}

std::vector<TraceInterval> merge_intervals(std::vector<TraceInterval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::vector<TraceInterval> result;
  for (const auto& interval : intervals) {
    if (interval.second <= interval.first) continue;
    if (!result.empty() && interval.first <= result.back().second) {
      result.back().second = std::max(result.back().second, interval.second);
    } else {
      result.push_back(interval);
    }
  }
  return result;
}

std::vector<TraceInterval> subtract_intervals(const std::vector<TraceInterval>& intervals,
                                              const std::vector<TraceInterval>& holes) {
  std::vector<TraceInterval> result;
  for (auto [begin, end] : intervals) {
    auto hole = std::upper_bound(holes.begin(), holes.end(), begin,
                                 [](std::int64_t t, const TraceInterval& h) { return t < h.second; });
    for (; hole != holes.end() && hole->first < end; ++hole) {
      if (hole->first > begin) result.emplace_back(begin, hole->first);
      begin = hole->second;
    }
    if (begin < end) result.emplace_back(begin, end);
  }
  return result;
}

std::int64_t length_of(const std::vector<TraceInterval>& intervals) {
  std::int64_t sum = 0;
  for (const auto& [begin, end] : intervals) sum += end - begin;
  return sum;
}

TracePart trace_part(const TraceRecorder::Recorded& recorded, const TraceSource& source) {
  TracePart part;
  part.totals.dropped = recorded.dropped;
  auto tracks = recorded.tracks;
  sort_tracks(tracks);
  auto kernels = kernels_in(tracks);
  std::map<int, std::string> stream_names;
  const bool on_device = !kernels.empty();
  if (!on_device) {
    Substitutes substitutes(tracks);
    kernels = std::move(substitutes.kernels);
    stream_names = substitutes.names();
  }
  Writer writer(source);
  writer.metadata("process_name", 0,
                  "\"name\":" + json_text("rank " + std::to_string(source.rank) + " (" + source.host + ")"));
  writer.metadata("process_sort_index", 0, "\"sort_index\":" + std::to_string(source.rank));
  std::map<std::string, std::pair<int, Rows>> placed;  // by track: its first thread, its spans
  std::vector<std::pair<std::string, TraceEvent>> messages;
  Starts starts;
  const auto draw = [&](const Rows& rows, int first, const std::string& name, const auto& note) {
    for (int row = 0; row < rows.count; ++row)
      writer.name_thread(first + row, row == 0 ? name : name + " " + std::to_string(row + 1));
    for (const auto& span : rows.spans) {
      writer.span(span.event, first + span.row);
      if (on_device) note(span.event, first + span.row);
    }
  };
  int thread = 0;
  for (auto& [name, events] : tracks) {
    thread += kRowsOfTrack;
    count_steps(events, part.totals);
    for (const auto& event : events) {
      if (event.kind == EventKind::message) messages.emplace_back(name, event);
    }
    std::erase_if(events, [](const auto& event) { return event.kind == EventKind::message; });
    const auto& [first, rows] = placed.emplace(name, std::pair(thread, Rows(std::move(events)))).first->second;
    draw(rows, first, name, [&](const TraceEvent& event, int row) { starts.add(event, row); });
  }
  for (const auto& [name, event] : messages) {
    const auto sender = placed.find(event.from), receiver = placed.find(name);
    if (sender == placed.end() || event.end_ns < event.begin_ns) continue;
    const auto from = sender->second.second.row_at(event.begin_ns), to = receiver->second.second.row_at(event.end_ns);
    if (from < 0 || to < 0) continue;
    writer.arrow("message", event.name.data(), {sender->second.first + from, event.begin_ns},
                 {receiver->second.first + to, event.end_ns});
  }
  std::map<int, std::vector<TraceEvent>> streams;
  for (const auto& kernel : kernels) streams[kernel.stream].push_back(kernel);
  for (auto& [stream, events] : streams) {
    const auto first = kKernelThreads + kRowsOfTrack * stream;
    const bool communicates = std::any_of(events.begin(), events.end(), is_communication);
    const Rows rows(std::move(events));
    const auto name = stream_names.contains(stream)
                          ? stream_names[stream]
                          : "stream " + std::to_string(stream) + (communicates ? ", NCCL" : "");
    draw(rows, first, name, [&](const TraceEvent& event, int row) { starts.join(event, row, writer); });
  }
  const auto communication = intervals_of(kernels, is_communication);
  const auto computation = intervals_of(kernels, is_computation);
  part.totals.collectives_ns = length_of(communication);
  part.totals.hidden_ns = part.totals.collectives_ns - length_of(subtract_intervals(communication, computation));
  part.totals.events = writer.count();
  part.events = writer.take();
  return part;
}

}  // namespace troupe
