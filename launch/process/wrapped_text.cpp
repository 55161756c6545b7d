#include "launch/process/wrapped_text.hpp"

#include <algorithm>

namespace troupe {
namespace {

constexpr std::size_t kNarrowest = 20;  // for text

// As much as fits into `room`, without the spaces around it.
std::string_view take_line(std::string_view& text, std::size_t room) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  std::size_t end = text.size();
  if (end > room) {
    const auto space = text.rfind(' ', room);
    end = space == std::string_view::npos || space == 0 ? room : space;
  }
  auto line = text.substr(0, end);
  text.remove_prefix(end);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  while (line.ends_with(' ')) line.remove_suffix(1);
  return line;
}

void append_lines(std::string& page, std::size_t indent, std::string_view text, std::size_t columns) {
  while (!text.empty()) page += std::string(indent, ' ') + std::string(take_line(text, columns - indent)) + "\n";
}

}  // namespace

std::string wrapped(const std::string& lead, std::size_t indent, std::string_view text, std::size_t columns) {
  columns = std::max(columns, kNarrowest + 2);
  if (indent + kNarrowest > columns) indent = 2;
  std::string page;
  if (lead.size() + 1 > indent && !lead.empty()) {
    append_lines(page, lead.size() - lead.substr(std::min(lead.find_first_not_of(' '), lead.size())).size(), lead,
                 columns);
  } else {
    page = lead + std::string(indent - lead.size(), ' ') + std::string(take_line(text, columns - indent)) + "\n";
  }
  append_lines(page, indent, text, columns);
  return page;
}

std::string wrapped_page(std::string_view page, std::size_t columns) {
  std::string fitted;
  while (!page.empty()) {
    const auto end = std::min(page.find('\n'), page.size());
    const auto line = page.substr(0, end);
    page.remove_prefix(std::min(end + 1, page.size()));
    if (line.size() <= columns) {
      fitted += std::string(line) + "\n";
      continue;
    }
    const auto first = std::min(line.find_first_not_of(' '), line.size());
    const auto gap = line.find("   ", first);
    if (gap == std::string_view::npos) {  // a paragraph
      fitted += wrapped(std::string(), first, line.substr(first), columns);
    } else {
      const auto text = line.find_first_not_of(' ', gap);
      // The column of long flags leaves no room for their text.
      const auto indent = std::min<std::size_t>(text, columns / 2);
      fitted += wrapped(std::string(line.substr(0, gap)), indent, line.substr(text), columns);
    }
  }
  return fitted;
}

}  // namespace troupe
