#include "launch/observe/svg_chart.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "launch/process/formatted.hpp"

namespace troupe {
namespace {

constexpr double kWidth = 760, kHeight = 260, kLeft = 72, kRight = 20, kTop = 12, kBottom = 56;
constexpr std::size_t kMostPoints = 1000;
constexpr std::size_t kMostAreas = 80;
constexpr int kColours = 9;  // c0 ... c8 of the page's style

bool finite(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second);
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    if (!std::isfinite(value) || std::abs(value) > 1e30) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return !(low <= high); }
  void widen() {
    if (high - low > 1e-12 * std::max(std::abs(low), std::abs(high)) && high > low) return;
    const double by = low == 0 ? 1 : std::abs(low) / 10;
    low -= by;
    high += by;
  }
  double place(double value, double from, double to) const {
    return from + (std::clamp(value, low, high) - low) / (high - low) * (to - from);
  }
};

// 1, 2 or 5 times a power of ten.
double tick_step(const Range& range, int ticks) {
  const double raw = (range.high - range.low) / ticks, power = std::pow(10, std::floor(std::log10(raw)));
  const double first = raw / power;
  return power * (first < 1.5 ? 1 : first < 3.5 ? 2 : first < 7.5 ? 5 : 10);
}

std::string number(double value) { return formatted("%.1f", value); }

std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<std::pair<double, double>> fewer;
  const std::size_t group = (points.size() * 2 + kMostPoints - 1) / kMostPoints;  // two points of each group stay
  for (std::size_t i = 0; i < points.size(); i += group) {
    const auto end = std::min(points.size(), i + group);
    std::size_t least = i, largest = i;
    for (auto j = i; j < end; ++j) {
      if (!finite(points[j])) {
        least = largest = j;  // the gap stays
        break;
      }
      if (points[j].second < points[least].second) least = j;
      if (points[j].second > points[largest].second) largest = j;
    }
    fewer.push_back(points[std::min(least, largest)]);
    if (least != largest) fewer.push_back(points[std::max(least, largest)]);
  }
  return fewer;
}

std::string element(const std::string& name, const std::string& attributes, const std::string& title) {
  return "<" + name + " " + attributes + "><title>" + html_escaped(title) + "</title></" + name + ">";
}

std::string draw_line(const ChartLine& line, int colour, const Range& x, const Range& y) {
  std::string svg, points;
  const auto class_name = " class='c" + std::to_string(colour % kColours) + "'";
  const auto flush = [&] {
    if (!points.empty()) svg += "<polyline" + class_name + " points='" + points + "'/>";
    points.clear();
  };
  for (const auto& point : thinned(line.points)) {
    if (!finite(point)) {
      flush();
      continue;
    }
    const auto at_x = number(x.place(point.first, kLeft, kWidth - kRight)),
               at_y = number(y.place(point.second, kHeight - kBottom, kTop));
    if (line.dots || line.points.size() == 1) {
      svg += element("circle", "r='3' cx='" + at_x + "' cy='" + at_y + "'" + class_name,
                     line.name + ": " + short_number(point.second) + " at " + short_number(point.first));
    } else {
      points += at_x + "," + at_y + " ";
    }
  }
  flush();
  return svg;
}

// The mean from `first` to `last`, and if there are several points the least and the largest.
std::string values_between(const ChartLine& line, double first, double last) {
  auto point = std::lower_bound(line.points.begin(), line.points.end(), first,
                                [](const auto& of, double at) { return of.first < at; });
  Range range;
  double sum = 0, count = 0;
  for (; point != line.points.end() && point->first <= last; ++point) {
    if (!finite(*point)) continue;
    range.add(point->second);
    sum += point->second;
    ++count;
  }
  if (range.empty()) return {};
  return "\n" + html_escaped(line.name) + ": " + short_number(sum / count) +
         (count > 1 ? " (" + short_number(range.low) + " to " + short_number(range.high) + ")" : "");
}

// Areas side by side, each with the values there as its title: a browser shows it at the pointer, without a script.
std::string draw_areas(const Chart& chart, const Range& x) {
  std::vector<double> all;
  for (const auto& line : chart.lines) {
    for (const auto& point : line.points) {
      if (finite(point)) all.push_back(point.first);
    }
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  const std::size_t group = (all.size() + kMostAreas - 1) / kMostAreas;
  const auto right = number(kWidth - kRight), top = number(kTop), bottom = number(kHeight - kBottom);
  std::string svg, from = number(kLeft);
  for (std::size_t i = 0; i < all.size(); i += group) {
    const std::size_t next = std::min(all.size(), i + group);
    const double first = all[i], last = all[next - 1];
    const auto to =
        next == all.size() ? right : number(x.place((last + all[next]) / 2, kLeft, kWidth - kRight));  // half-way
    svg += "<path class='hit' d='M" + from + " " + top + "H" + to + "V" + bottom + "H" + from + "z'><title>" +
           html_escaped(chart.x_name) + " " + short_number(first) + (last > first ? " to " + short_number(last) : "");
    for (const auto& line : chart.lines) svg += values_between(line, first, last);
    svg += "</title></path>";
    from = to;
  }
  return svg;
}

std::string draw_axes(const Chart& chart, const Range& x, const Range& y) {
  std::string svg;
  const auto text = [&](double at_x, double at_y, const char* anchor, const std::string& words, bool minor = false) {
    svg += "<text x='" + number(at_x) + "' y='" + number(at_y) + "' text-anchor='" + anchor +
           (minor ? "' class='minor'>" : "'>") + html_escaped(words) + "</text>";
  };
  const double y_step = tick_step(y, 5), x_step = tick_step(x, 8);
  for (double tick = std::ceil(y.low / y_step) * y_step; tick <= y.high + y_step / 1000; tick += y_step) {
    const double at = y.place(tick, kHeight - kBottom, kTop);
    svg += "<line class='grid' x1='" + number(kLeft) + "' x2='" + number(kWidth - kRight) + "' y1='" + number(at) +
           "' y2='" + number(at) + "'/>";
    text(kLeft - 6, at + 4, "end", short_number(std::abs(tick) < y_step / 1000 ? 0 : tick));
  }
  bool minor = true;  // every other one, which a narrow screen leaves out
  for (double tick = std::ceil(x.low / x_step) * x_step; tick <= x.high + x_step / 1000; tick += x_step)
    text(x.place(tick, kLeft, kWidth - kRight), kHeight - kBottom + 22, "middle",
         short_number(std::abs(tick) < x_step / 1000 ? 0 : tick), minor = !minor);
  text((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", chart.x_name);
  return svg;
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    }
  }
  return escaped;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  const int digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.01 ? 3 : 5;
  auto words = size >= 1e7 || (size > 0 && size < 1e-4) ? formatted("%.3g", value) : formatted("%.*f", digits, value);
  if (words.find('.') != std::string::npos && words.find('e') == std::string::npos) {
    words.erase(words.find_last_not_of('0') + 1);
    if (words.back() == '.') words.pop_back();
  }
  return words;
}

std::string percent_text(double share) { return formatted("%.1f %%", 100 * share); }

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || std::abs(seconds) > 1e10) return "-";
  const auto whole = static_cast<long long>(seconds);
  if (std::abs(seconds) < 1) return short_number(1000 * seconds) + " ms";
  if (seconds < 100) return formatted("%.1f s", seconds);
  if (seconds < 3600) return formatted("%lld min %lld s", whole / 60, whole % 60);
  return formatted("%lld h %lld min", whole / 3600, whole / 60 % 60);
}

std::string svg_chart(const Chart& chart) {
  Range x, y;
  for (const auto& line : chart.lines) {
    for (const auto& point : line.points) {
      if (!finite(point)) continue;
      x.add(point.first);
      y.add(point.second);
    }
  }
  if (x.empty() || y.empty())
    return "<p class='missing'>" + html_escaped(chart.title) +
           ": no value yet; the first comes after log_interval steps.</p>";
  for (const auto& mark : chart.marks) x.add(mark.x);
  if (chart.from_zero) y.add(0);
  x.widen();
  y.widen();
  auto label = chart.title;
  for (const auto& line : chart.lines) {
    if (!line.points.empty())
      label += ", " + line.name + " " + short_number(line.points.back().second) + " at " + chart.x_name + " " +
               short_number(line.points.back().first);
  }
  std::string svg = "<svg viewBox='0 0 " + number(kWidth) + " " + number(kHeight) + "' role='img' aria-label='" +
                    html_escaped(label) + "'>" + draw_axes(chart, x, y) + draw_areas(chart, x);
  for (const auto& mark : chart.marks) {
    const auto at = number(x.place(mark.x, kLeft, kWidth - kRight));
    svg += element(
        "line",
        "class='mark' x1='" + at + "' x2='" + at + "' y1='" + number(kTop) + "' y2='" + number(kHeight - kBottom) + "'",
        mark.text);
  }
  std::vector<std::string> names;
  int colour = 0;
  for (const auto& line : chart.lines) {
    svg += draw_line(line, colour++, x, y);
    names.push_back(line.name);
  }
  return "<figure><figcaption><b>" + html_escaped(chart.title) + "</b>" +
         (chart.y_name.empty() ? "" : " (" + html_escaped(chart.y_name) + ")") +
         (chart.note.empty() ? "" : " <span class='soft'>" + html_escaped(chart.note) + "</span>") + "</figcaption>" +
         svg + "</svg>" + svg_legend(names.size() > 1 ? names : std::vector<std::string>(), !chart.marks.empty()) +
         "</figure>\n";
}

std::string svg_bar(const std::string& label, const std::vector<BarPart>& parts, double whole) {
  constexpr double kBarWidth = 600, kBarHeight = 18;
  std::string svg = "<svg class='bar' role='img' aria-label='" + html_escaped(label) + "' viewBox='0 0 " +
                    number(kBarWidth) + " " + number(kBarHeight) + "' preserveAspectRatio='none'>";
  double at = 0;
  int colour = 0;
  for (const auto& part : parts) {
    const double share = whole > 0 && std::isfinite(part.value) ? std::clamp(part.value / whole, 0.0, 1.0) : 0;
    const double width = std::min(share * kBarWidth, kBarWidth - at);
    if (width > 0) {
      svg += element("rect",
                     "class='c" + std::to_string(colour % kColours) + "' x='" + number(at) + "' y='0' width='" +
                         number(width) + "' height='" + number(kBarHeight) + "'",
                     part.name + ": " + short_number(part.value));
    }
    at += width;
    ++colour;
  }
  return svg + "</svg>";
}

std::string svg_legend(const std::vector<std::string>& names, bool marks) {
  std::string html = "<p class='legend'>";
  for (std::size_t i = 0; i < names.size(); ++i)
    html += "<span><i class='b" + std::to_string(i % kColours) + "'></i>" + html_escaped(names[i]) + "</span> ";
  return html + (marks ? "<span class='soft'>dashed red: a change of membership</span></p>" : "</p>");
}

}  // namespace troupe
