#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

/// `text` for HTML, in an attribute, too: characters with a meaning there are escaped, and control characters become
/// spaces.
std::string html_escaped(std::string_view text);
/// With all significant digits: `0.0123`, `12.3`, `12345`; `-` for NaN and infinity.
std::string short_number(double value);
/// A share, 0 to 1, as `12.3 %`.
std::string percent_text(double share);
/// `850 ms`, `12.3 s`, `4 min 10 s`, `3 h 20 min`.
std::string duration_text(double seconds);

struct ChartLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< (x, y), x not falling; a y that is not finite leaves a gap
  bool dots = false;                              ///< no line between them
};
struct ChartMark {
  double x = 0;
  std::string text;
};
struct Chart {
  std::string title, x_name, y_name;
  std::vector<ChartLine> lines;
  std::vector<ChartMark> marks;  ///< vertical lines: changes of membership
  bool from_zero = false;        ///< the y axis begins at 0
  std::string note;              ///< below the title: how it is read
};

/// An inline SVG; of more than a thousand points in a line the least and largest of neighbours are drawn. Where it is
/// pointed at, it says the values there: in at most 80 areas, of several points the mean, the least and the largest. A
/// sentence if there is nothing to draw. All text is escaped.
std::string svg_chart(const Chart& chart);

struct BarPart {
  std::string name;
  double value = 0;
};
/// One horizontal bar of parts beside each other. `label`: for a reader who does not see it. `whole`: the value that
/// fills the width.
std::string svg_bar(const std::string& label, const std::vector<BarPart>& parts, double whole);
/// The colours' names, in the order of parts, and what the marks are.
std::string svg_legend(const std::vector<std::string>& names, bool marks = false);

}  // namespace troupe
