#pragma once
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/support/running_process.hpp"

namespace troupe::testing {

/// A Chrome trace as Perfetto wants it: in each thread spans come in order and lie within or beside each other, and
/// every arrow has both ends, each in a span. Times in ns.
struct ParsedTrace {
  using Thread = std::pair<int, int>;  // pid, tid
  struct Span {
    std::string name, category;
    std::int64_t begin = 0, end = 0;
    nlohmann::json arguments;
  };
  nlohmann::json other;
  std::map<Thread, std::string> names;
  std::map<int, std::string> processes;
  std::map<Thread, std::vector<Span>> spans;
  std::map<std::int64_t, std::vector<std::pair<std::string, Thread>>> arrows;  // by id: s or f, and where
  std::set<std::string> arrow_names;

  explicit ParsedTrace(const std::string& text) {
    const auto json = nlohmann::json::parse(text);
    other = json.at("otherData");
    const auto ns = [](const nlohmann::json& us) { return static_cast<std::int64_t>(us.get<double>() * 1000 + 0.5); };
    std::vector<std::tuple<std::int64_t, Thread, std::string>> ends;
    for (const auto& event : json.at("traceEvents")) {
      const std::string phase = event.at("ph");
      const Thread thread{event.at("pid"), event.at("tid")};
      if (phase == "M") {
        if (event["name"] == "thread_name") names[thread] = event["args"]["name"];
        if (event["name"] == "process_name") processes[thread.first] = event["args"]["name"];
      } else if (phase == "X") {
        const auto begin = ns(event.at("ts"));
        spans[thread].push_back(
            {event.at("name"), event.at("cat"), begin, begin + ns(event.at("dur")), event.at("args")});
      } else {
        REQUIRE((phase == "s" || phase == "f"));
        arrows[event.at("id")].emplace_back(phase, thread);
        arrow_names.insert(event.at("name").get<std::string>());
        ends.emplace_back(ns(event.at("ts")), thread, phase);
        if (phase == "f") CHECK(event.at("bp") == "e");
      }
    }
    check_nesting();
    for (const auto& [id, both] : arrows) {
      INFO("arrow " << id);
      REQUIRE(both.size() == 2);
      CHECK(both[0].first != both[1].first);
    }
    for (const auto& [at, thread, phase] : ends) {
      bool inside = false;
      for (const auto& span : spans[thread]) inside = inside || (span.begin <= at && at <= span.end);
      INFO(phase << " at " << at << " in " << names[thread]);
      CHECK(inside);
    }
  }

  void check_nesting() const {
    for (const auto& [thread, list] : spans) {
      std::vector<std::int64_t> open;
      std::int64_t last = 0;
      for (const auto& span : list) {
        INFO(span.name << " at " << span.begin << " in thread " << thread.second);
        CHECK(span.begin >= last);
        last = span.begin;
        while (!open.empty() && open.back() <= span.begin) open.pop_back();
        if (!open.empty()) CHECK(span.end <= open.back());
        open.push_back(span.end);
      }
    }
  }
  /// Of all threads of that name (and its further rows) of a process.
  std::vector<Span> of(int process, const std::string& name) const {
    std::vector<Span> found;
    for (const auto& [thread, list] : spans) {
      if (thread.first == process && names.at(thread).starts_with(name))
        found.insert(found.end(), list.begin(), list.end());
    }
    return found;
  }
  std::size_t count(int process, const std::string& track, const std::string& beginning) const {
    std::size_t n = 0;
    for (const auto& span : of(process, track)) n += span.name.starts_with(beginning) ? 1 : 0;
    return n;
  }
};

}  // namespace troupe::testing
