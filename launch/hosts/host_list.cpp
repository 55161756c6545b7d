#include "launch/hosts/host_list.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>

#include "launch/process/displayable.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxName = 253;  // RFC 1035
constexpr std::size_t kMaxLabel = 63;
constexpr std::size_t kMaxUser = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alnum(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Where a value stands; every refusal goes through it.
struct Place {
  const std::string& list;
  const char* unit;  // "line" or "entry"
  int number;

  [[noreturn]] void refuse(const std::string& cause, const std::string& remedy) const {
    throw Error(ErrorCode::usage, list + " " + unit + " " + std::to_string(number), cause, remedy);
  }
};

int whole_number(const Place& place, const std::string& field, std::string_view text, int minimum, int maximum,
                 const std::string& remedy) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < minimum || value > maximum) {
    place.refuse(field + " '" + displayable(text) + "' is not a whole number from " + std::to_string(minimum) + " to " +
                     std::to_string(maximum),
                 remedy);
  }
  return value;
}

int slots_of(const Place& place, std::string_view text) {
  return whole_number(place, "slots", text, 1, kMaxSlots, "write one slot for each rank, for instance slots=8");
}

// IPv6 in its shortest spelling, so that two spellings of one address are one host. A zone (%eth0) keeps its case.
std::optional<std::string> canonical_ipv6(std::string_view text) {
  const auto percent = text.find('%');
  const std::string digits(text.substr(0, percent));
  in6_addr address{};
  char shortest[INET6_ADDRSTRLEN];
  if (digits.size() >= sizeof shortest || inet_pton(AF_INET6, digits.c_str(), &address) != 1) return std::nullopt;
  inet_ntop(AF_INET6, &address, shortest, sizeof shortest);
  if (percent == std::string_view::npos) return shortest;
  const auto zone = text.substr(percent + 1);
  const auto odd = [](char c) { return !is_alnum(c) && c != '_' && c != '-' && c != '.'; };
  if (zone.empty() || zone.size() > 15 || std::any_of(zone.begin(), zone.end(), odd)) return std::nullopt;
  return std::string(shortest) + "%" + std::string(zone);
}

std::string name_or_ipv4(const Place& place, const std::string& field, std::string_view text) {
  const auto refuse = [&](const std::string& reason, const std::string& remedy) {
    place.refuse(field + " '" + displayable(text) + "' " + reason, remedy);
  };
  const std::string allowed = "a name has letters, digits, '-', '_' and '.'";
  if (text.empty()) refuse("is empty", "write the host's name first");
  if (text.front() == '-') refuse("begins with '-', which ssh would read as an option", "write the host's name");
  std::string name(text.ends_with('.') ? text.substr(0, text.size() - 1) : text);
  if (name.size() > kMaxName) refuse("has " + std::to_string(name.size()) + " characters", "a name has at most 253");
  for (auto& c : name) {
    if (!is_alnum(c) && c != '-' && c != '_' && c != '.')
      refuse("has the character '" + displayable({&c, 1}) + "'", allowed);
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  std::string_view rest = name, label;
  do {
    const auto dot = rest.find('.');
    label = rest.substr(0, dot);
    rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
    if (label.empty() || (dot != std::string_view::npos && rest.empty()))
      refuse("has two dots in a row, or nothing but a dot", allowed);
    if (label.size() > kMaxLabel)
      refuse("has a part of " + std::to_string(label.size()) + " characters", "a part has at most 63");
    if (label.front() == '-' || label.back() == '-')
      refuse("has a part that begins or ends with '-'", "no host has such a name");
  } while (!rest.empty());
  if (std::all_of(label.begin(), label.end(), is_digit)) {  // such a name can only be an IPv4 address (RFC 1123)
    in_addr address{};
    if (inet_pton(AF_INET, name.c_str(), &address) != 1)
      refuse("is not an IPv4 address", "write four numbers from 0 to 255, or a name");
  }
  return name;
}

// The text before `:slots`, and the slots.
struct Target {
  std::string host;
  std::string user;
  std::optional<int> slots;
};

std::string user_of(const Place& place, std::string_view text) {
  const auto odd = [](char c) { return !is_alnum(c) && c != '_' && c != '-' && c != '.' && c != '+'; };
  const auto bad = std::find_if(text.begin(), text.end(), odd);
  const std::string what = "user '" + displayable(text) + "' ";
  const std::string remedy = "a user has letters, digits, '_', '-', '.' and '+'";
  if (text.empty()) place.refuse(what + "is empty", remedy);
  if (text.size() > kMaxUser)
    place.refuse(what + "has " + std::to_string(text.size()) + " characters", "a user has at most 64");
  if (text.front() == '-') place.refuse(what + "begins with '-', which ssh would read as an option", remedy);
  if (bad != text.end()) place.refuse(what + "has the character '" + displayable({&*bad, 1}) + "'", remedy);
  return std::string(text);
}

Target target_of(const Place& place, std::string_view text) {
  Target target;
  if (const auto at = text.find('@'); at != std::string_view::npos) {
    target.user = user_of(place, text.substr(0, at));
    text.remove_prefix(at + 1);
  }
  std::string_view after;
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    const auto address = close == std::string_view::npos ? std::nullopt : canonical_ipv6(text.substr(1, close - 1));
    if (!address) {
      place.refuse("host '" + displayable(text) + "' has brackets but no IPv6 address in them",
                   "write it like [fd00::1] or [fd00::1]:8");
    }
    target.host = *address;
    after = text.substr(close + 1);
  } else if (std::count(text.begin(), text.end(), ':') > 1) {
    const auto address = canonical_ipv6(text);
    if (!address)
      place.refuse("host '" + displayable(text) + "' has several ':' but is not an IPv6 address",
                   "write it like worker-1:8 or [fd00::1]:8");
    target.host = *address;
  } else {
    const auto colon = text.find(':');
    target.host = name_or_ipv4(place, "host", text.substr(0, colon));
    if (colon != std::string_view::npos) after = text.substr(colon);
  }
  if (after.empty()) return target;
  if (after.front() != ':')
    place.refuse("'" + displayable(after) + "' follows the brackets", "after them may come :SLOTS, as in [fd00::1]:8");
  target.slots = slots_of(place, after.substr(1));
  return target;
}

// An address field may also be IPv6 without brackets: nothing follows it.
std::string address_of(const Place& place, std::string_view text) {
  auto inner = text;
  if (inner.size() > 2 && inner.front() == '[' && inner.back() == ']') inner = inner.substr(1, inner.size() - 2);
  if (const auto ipv6 = canonical_ipv6(inner)) return *ipv6;
  if (text.find(':') != std::string_view::npos) {
    place.refuse("address '" + displayable(text) + "' is not an IPv6 address",
                 "write address=fd00::1, or port=P for a port");
  }
  return name_or_ipv4(place, "address", text);
}

// The words of a line; the spaces that Open MPI allows around '=' are taken out.
std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  bool joins = false;
  for (std::size_t i = 0; i < line.size();) {
    if (is_space(line[i])) {
      ++i;
      continue;
    }
    auto end = i;
    while (end < line.size() && !is_space(line[end])) ++end;
    const auto word = line.substr(i, end - i);
    if ((joins || word.front() == '=') && words.size() > 1) {
      words.back() += word;
    } else {
      words.emplace_back(word);
    }
    joins = words.size() > 1 && word.back() == '=';
    i = end;
  }
  return words;
}

Host host_of(const Place& place, const std::vector<std::string>& words) {
  Host host;
  host.line = place.number;
  const auto target = target_of(place, words[0]);
  host.name = target.host;
  std::map<std::string, std::string> fields;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const auto equals = words[i].find('=');
    auto key = words[i].substr(0, equals);
    std::replace(key.begin(), key.end(), '-', '_');
    if (key == "slots_max") key = "max_slots";
    if (equals == std::string::npos || equals == 0) {
      place.refuse("'" + displayable(words[i]) + "' is not a field",
                   "write field=value after the host, for instance slots=8");
    }
    if (key != "slots" && key != "port" && key != "user" && key != "address" && key != "max_slots") {
      place.refuse("there is no field '" + displayable(key) + "'", "the fields are slots, port, user and address");
    }
    const auto value = words[i].substr(equals + 1);
    if (!fields.emplace(key, value).second) {
      place.refuse(
          "field " + key + " is given twice, '" + displayable(fields[key]) + "' and '" + displayable(value) + "'",
          "keep one");
    }
  }
  const auto value = [&](const char* key) -> const std::string* {
    const auto found = fields.find(key);
    return found == fields.end() ? nullptr : &found->second;
  };
  if (const auto* text = value("slots")) {
    if (target.slots)
      place.refuse(
          "slots are given twice, ':" + std::to_string(*target.slots) + "' and 'slots=" + displayable(*text) + "'",
          "keep one");
    host.slots = slots_of(place, *text);
  } else {
    host.slots = target.slots.value_or(1);
  }
  if (const auto* text = value("max_slots")) {
    const int most =
        whole_number(place, "max_slots", *text, 1, 1'000'000, "leave max_slots out: it has no effect here");
    if (most < host.slots)
      place.refuse("slots " + std::to_string(host.slots) + " are more than max_slots " + *text,
                   "lower slots, or leave max_slots out");
  }
  if (const auto* text = value("port")) {
    host.port = static_cast<std::uint16_t>(
        whole_number(place, "port", *text, 1, 65535, "write the port of the host's sshd, usually 22"));
  }
  if (const auto* text = value("user")) {
    if (!target.user.empty())
      place.refuse("the user is given twice, '" + target.user + "@' and 'user=" + displayable(*text) + "'", "keep one");
    host.user = user_of(place, *text);
  } else {
    host.user = target.user;
  }
  const auto* address = value("address");
  host.address = address == nullptr ? host.name : address_of(place, *address);
  return host;
}

// What must hold between hosts, checked as each is added.
class HostCollector {
 public:
  HostCollector(const std::string& list, const char* unit) : list_(list), unit_(unit) {}

  void add(const Place& place, Host host) {
    if (hosts_.size() == kMaxHosts) {
      place.refuse("host '" + host.name + "' is number " + std::to_string(kMaxHosts + 1),
                   "a list has at most " + std::to_string(kMaxHosts) + " hosts");
    }
    ranks_ += host.slots;
    if (ranks_ > kMaxRanks) {
      place.refuse("with slots '" + std::to_string(host.slots) + "' the list has " + std::to_string(ranks_) + " slots",
                   "a job has at most " + std::to_string(kMaxRanks) + " ranks");
    }
    if (const auto [at, fresh] = by_name_.emplace(host.name, hosts_.size()); !fresh)
      return add_slots(place, hosts_[at->second], host);
    if (const auto [at, fresh] = by_address_.emplace(std::pair(host.address, host.port), host.line); !fresh) {
      place.refuse("address '" + host.address + "' is already in " + unit_ + " " + std::to_string(at->second),
                   "give each host one name");
    }
    if (host.address == host.name && is_this_machine(host)) {
      if (here_ > 0)
        place.refuse("'" + host.name + "' is this machine, and so is " + unit_ + " " + std::to_string(here_),
                     "name it once, with all its slots, for instance localhost:2");
      here_ = host.line;
    }
    hosts_.push_back(std::move(host));
  }

  std::vector<Host> take(const std::string& remedy) {
    if (hosts_.empty()) throw Error(ErrorCode::usage, list_, "the list names no host", remedy);
    return std::move(hosts_);
  }

 private:
  // The same host once more: its slots add up.
  void add_slots(const Place& place, Host& first, const Host& more) const {
    const auto at = unit_ + " " + std::to_string(first.line);
    if (std::tie(first.address, first.port, first.user) != std::tie(more.address, more.port, more.user)) {
      place.refuse("host '" + more.name + "' is in " + at + " with a different address, port or user",
                   "give it the same ones: the slots of both lines then add up");
    }
    first.slots += more.slots;
    if (first.slots > kMaxSlots) {
      place.refuse("host '" + more.name + "' has " + std::to_string(first.slots) + " slots with those of " + at,
                   "a host has at most " + std::to_string(kMaxSlots));
    }
  }

  const std::string& list_;
  const std::string unit_;
  std::vector<Host> hosts_;
  std::map<std::string, std::size_t> by_name_;
  std::map<std::pair<std::string, std::uint16_t>, int> by_address_;
  long ranks_ = 0;
  int here_ = 0;  // where localhost stands, by that name or another
};

}  // namespace

bool is_this_machine(const Host& host) {
  return host.address == "localhost" || host.address == "::1" || host.address.starts_with("127.");
}

std::vector<Host> parse_host_list(std::string_view text, const std::string& file) {
  if (text.size() > kMaxHostFileBytes) {
    throw Error(ErrorCode::usage, file,
                "it has " + std::to_string(text.size()) + " bytes; a host file has at most " +
                    std::to_string(kMaxHostFileBytes),
                "name a host file, one host on each line");
  }
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  HostCollector hosts(file, "line");
  int number = 0;
  while (!text.empty()) {
    const auto newline = text.find('\n');
    auto line = text.substr(0, newline);
    text = newline == std::string_view::npos ? std::string_view() : text.substr(newline + 1);
    const Place place{file, "line", ++number};
    if (line.find('\0') != std::string_view::npos)
      place.refuse("'" + displayable(line) + "' has a NUL byte", "save the file as plain text (UTF-8)");
    line = trimmed(line.substr(0, line.find('#')));
    if (!line.empty()) hosts.add(place, host_of(place, words_of(line)));
  }
  return hosts.take("write one host on each line, for instance worker-1 slots=8");
}

std::vector<Host> parse_host_flag(std::string_view text, const std::string& flag) {
  HostCollector hosts(flag, "entry");
  const std::string remedy = "write it like a:8,b:8";
  if (text.size() > kMaxHostFileBytes)
    throw Error(ErrorCode::usage, flag, "the list has " + std::to_string(text.size()) + " characters",
                "use a host file");
  if (trimmed(text).empty()) return hosts.take(remedy);
  int number = 0;
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    more = comma != std::string_view::npos;
    const auto entry = trimmed(text.substr(0, comma));
    if (more) text.remove_prefix(comma + 1);
    const Place place{flag, "entry", ++number};
    if (entry.empty()) place.refuse("host '' is empty", remedy);
    hosts.add(place, host_of(place, {std::string(entry)}));
  }
  return hosts.take(remedy);
}

std::vector<RankPlace> assign_ranks(const std::vector<Host>& hosts) {
  std::vector<RankPlace> places;
  for (int host = 0; host < static_cast<int>(hosts.size()); ++host) {
    for (int local = 0; local < hosts[static_cast<std::size_t>(host)].slots; ++local) places.push_back({host, local});
  }
  return places;
}

}  // namespace troupe
