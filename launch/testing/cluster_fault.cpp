#include "launch/testing/cluster_fault.hpp"

#include <sstream>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/fault_point.hpp"

namespace troupe::testing {
namespace {

using Kind = ClusterFault::Kind;

std::string code_of(Rank rank) { return "Rank{" + std::to_string(rank.number) + "}"; }
std::string code_of(Host host) { return "Host{" + std::to_string(host.number) + "}"; }
std::string code_of(std::chrono::milliseconds time) { return std::to_string(time.count()) + "ms"; }
std::string quoted(const std::string& text) { return '"' + text + '"'; }

std::string code_of(const At& at) {
  return "At{" + quoted(at.place) + ", " + std::to_string(at.step) +
         (at.life > 0 ? ", " + std::to_string(at.life) : "") + "}";
}

std::string code_of(const Message& message) {
  std::string text;
  const auto add = [&](const char* name, const std::string& value) {
    text += (text.empty() ? "." : ", .") + std::string(name) + " = " + value;
  };
  if (message.from) add("from", code_of(*message.from));
  if (message.to) add("to", code_of(*message.to));
  if (!message.type.empty()) add("type", quoted(message.type));
  if (message.nth > 0) add("nth", std::to_string(message.nth));
  if (message.after) add("after", code_of(*message.after));
  return "Message{" + text + "}";
}

void check_rank(Rank rank, int ranks) {
  if (rank.number >= 0 && rank.number < ranks) return;
  throw Error(ErrorCode::usage, code_of(rank), "the cluster has " + std::to_string(ranks) + " ranks",
              "they count from 0");
}

void check_place(const At& at) {
  check_fault_place("At", at.place);
  if (at.place.starts_with("journal"))
    throw Error(ErrorCode::usage, "At", "'" + at.place + "' is a place of the coordinator's");
}

void check_cut(const ClusterFault& fault, int hosts, bool parallel) {
  if (parallel)
    throw Error(ErrorCode::usage, "cut", "with .parallel = true ranks exchange tensors over sockets that are not cut",
                "leave .parallel out");
  for (const auto host : {fault.host, fault.other}) {
    if (host.number < 0 || host.number >= hosts)
      throw Error(ErrorCode::usage, code_of(host), "the cluster has " + std::to_string(hosts) + " hosts",
                  "they count from 0");
  }
  if (fault.host.number == fault.other.number)
    throw Error(ErrorCode::usage, "cut", "it needs two hosts, and " + code_of(fault.host) + " is one");
}

void check_message(const Message& message, int ranks) {
  if (message.from.has_value() == message.to.has_value())
    throw Error(ErrorCode::usage, code_of(message), "it says .from or .to: the rank, and which way",
                "ranks send no messages to each other: one end is always a rank");
  check_rank(message.from ? *message.from : *message.to, ranks);
  if (message.nth < 0) throw Error(ErrorCode::usage, code_of(message), ".nth counts from 0");
  if (message.after) check_place(*message.after);
}

}  // namespace

std::string ClusterFault::to_code() const {
  const auto call = [](const char* name, const auto&... arguments) {
    std::string text;
    ((text += (text.empty() ? "" : ", ") + arguments), ...);
    return std::string("cluster.") + name + "(" + text + ");";
  };
  switch (kind) {
    case Kind::kill: return call("kill", code_of(Rank{rank}), code_of(at));
    case Kind::leave: return call("leave", code_of(Rank{rank}), code_of(at));
    case Kind::stop: return call("stop", code_of(Rank{rank}), code_of(at), code_of(lasts));
    case Kind::slow: {
      std::ostringstream times;
      times << factor;
      return call("slow", code_of(Rank{rank}), "Times{" + times.str() + "}");
    }
    case Kind::cut: return call("cut", code_of(host), code_of(other), code_of(at), code_of(lasts));
    case Kind::drop: return call("drop", code_of(message));
    case Kind::delay: return call("delay", code_of(message), code_of(lasts));
    case Kind::reorder: return call("reorder", code_of(message));
  }
  return {};
}

void check_fault(const ClusterFault& fault, int hosts, int ranks, bool parallel) {
  if (fault.hits_message()) return check_message(fault.message, ranks);
  if (fault.kind == Kind::cut) {
    check_cut(fault, hosts, parallel);
  } else {
    check_rank(Rank{fault.rank}, ranks);
  }
  if (fault.kind != Kind::slow) return check_place(fault.at);
  if (!(fault.factor > 1)) throw Error(ErrorCode::usage, "Times", "a slow rank takes more than one times as long");
}

}  // namespace troupe::testing
