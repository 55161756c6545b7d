#pragma once
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace troupe {

/// Cuts a stream of bytes into lines. A carriage return ends a line that the next one overwrites (a progress bar).
/// Lines longer than 64 KiB are cut.
class OutputLines {
 public:
  /// `overwrite`: the line ended with a carriage return.
  using Line = std::function<void(std::string_view text, bool overwrite)>;
  void feed(std::string_view bytes, const Line& line);
  void finish(const Line& line);  ///< the stream ended: the rest is a line
  /// Feeds the present data of a non-blocking `fd`. False once the stream has ended: then the rest was a line, and the
  /// fd may be closed.
  bool drain(int fd, const Line& line);

 private:
  std::string rest_;
};

}  // namespace troupe
