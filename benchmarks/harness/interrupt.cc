#include "benchmarks/harness/interrupt.h"

#include <signal.h>

#include <cstddef>
#include <cstdio>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep::benchmarks {
namespace {

constexpr struct {
  int number;
  absl::string_view name;
} kSignals[] = {{SIGHUP, "SIGHUP"}, {SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}};

volatile sig_atomic_t received = 0;

void Remember(int signal) { received = signal; }

}  // namespace

absl::Status CheckInterrupted() {
  for (const auto& signal : kSignals) {
    if (received != signal.number) continue;
    return absl::CancelledError(absl::StrCat(
        "interrupted by signal ", signal.number, " (", signal.name, ")"));
  }
  return absl::OkStatus();
}

InterruptGuard::InterruptGuard() {
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    struct sigaction remember = {};
    remember.sa_handler = Remember;
    remember.sa_flags = SA_RESETHAND;  // System calls also end with EINTR.
    sigaction(kSignals[i].number, nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) {
      sigaction(kSignals[i].number, &remember, nullptr);
    }
  }
}

InterruptGuard::~InterruptGuard() {
  const absl::Status status = CheckInterrupted();
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i].number, &before_[i], nullptr);
  }
  if (status.ok()) return;
  std::fflush(stdout);
  std::fprintf(stderr, "%s; the report has the measurements from before\n",
               std::string(status.message()).c_str());
  const int signal = received;
  received = 0;
  raise(signal);
}

}  // namespace lockstep::benchmarks
