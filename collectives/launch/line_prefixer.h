// Turns a stream of bytes into whole lines that say where they came from.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_LINE_PREFIXER_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_LINE_PREFIXER_H_

#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// Collects the bytes of one stream and hands out its complete lines, each with
// the prefix in front. A line longer than kMaxLineBytes is broken there, so
// that a stream without line ends cannot fill the memory. Not thread safe.
class LinePrefixer {
 public:
  static constexpr int kMaxLineBytes = 1 << 20;

  explicit LinePrefixer(absl::string_view prefix) : prefix_(prefix) {}

  // Takes the next bytes of the stream, any split; returns the lines that they
  // complete, prefixed, each with its line end; "" if there is none.
  // Cost: linear in the bytes taken.
  std::string Add(absl::string_view bytes);

  // The end of the stream: returns the last line if it had no line end, with
  // prefix and a line end; else "".
  std::string Finish();

 private:
  std::string prefix_;
  std::string partial_;  // The bytes since the last line end.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_LINE_PREFIXER_H_
