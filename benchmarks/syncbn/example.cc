#include "benchmarks/syncbn/example.h"

#include <cstdint>
#include <vector>

#include "benchmarks/harness/example_origin.h"
#include "benchmarks/syncbn/measure.h"
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/turn.h"

namespace lockstep::benchmarks {
namespace {

TeamCall Call(double seconds) {
  TeamCall call;
  call.seconds = seconds;
  return call;
}

// Calls of 1, 0.5, 2, 1 times `call`.
std::vector<TeamCall> Spread(const TeamCall& call) {
  std::vector<TeamCall> calls(4, call);
  calls[1].seconds /= 2;
  calls[2].seconds *= 2;
  return calls;
}

SyncBnMeasured Measured(SyncBnSubject subject, double forward,
                        double backward) {
  return {.subject = subject,
          .forward = Spread(Call(forward)),
          .backward = Spread(Call(backward))};
}

// Forward and backward of SyncBN with timers.
SyncBnMeasured Split(double seconds) {
  TeamCall forward = Call(1.3 * seconds), backward = Call(2.1 * seconds);
  forward.kernels = {0.25 * seconds, 0.01 * seconds, 0.5 * seconds, 0, 0};
  forward.communication = 0.25 * seconds;
  forward.wait = 0.2 * seconds;
  forward.other = 0.04 * seconds;
  forward.messages = 1;
  forward.message_bytes = 528;
  backward.kernels = {0, 0, 0, 0.8 * seconds, 0.8 * seconds};
  backward.communication = 0.25 * seconds;
  backward.wait = 0.1 * seconds;
  return {.subject = SyncBnSubject::kSplit,
          .forward = Spread(forward),
          .backward = Spread(backward)};
}

MeasuredTurns NetworkTurns() {
  MeasuredTurns turns;
  turns.rounds = 4;
  turns.subjects = {Measured(SyncBnSubject::kLocal, 0.8, 0),
                    Measured(SyncBnSubject::kSync, 1, 0), Split(1)};
  for (SyncBnMeasured& subject : turns.subjects) subject.backward.clear();
  for (TeamCall& step : turns.subjects[2].forward) {
    step.kernels = {};
    step.other += 0.76;
    step.messages = 34;
    step.message_bytes = 62736;
  }
  return turns;
}

}  // namespace

MeasuredTurns ExampleTurns(double seconds, bool torch) {
  MeasuredTurns turns;
  turns.rounds = 4;
  turns.subjects = {
      Measured(SyncBnSubject::kLocal, seconds, 2 * seconds),
      Measured(SyncBnSubject::kSync, 1.25 * seconds, 2 * seconds),
      Split(seconds),
      Measured(SyncBnSubject::kOwnLocal, 1.25 * seconds, 1.5 * seconds),
      Measured(SyncBnSubject::kMessage, 0.25 * seconds, 0.25 * seconds),
      Measured(SyncBnSubject::kCopy, seconds, 0)};
  turns.subjects.back().backward.clear();
  if (torch) {
    turns.subjects.push_back(
        Measured(SyncBnSubject::kTorch, 2 * seconds, 3 * seconds));
    turns.subjects.back().note = "PyTorch 2.1 (python3); it is an example";
  }
  return turns;
}

SyncBnReport ExampleSyncBnReport() {
  SyncBnReport report;
  SyncBnSettings& settings = report.settings;
  settings.sets = {ShapeSet::kResNet18, ShapeSet::kDetection};
  report.origin = ExampleOrigin("syncbn --shapes=resnet18,detection");
  const MeasuredTurns first = ExampleTurns(1e-3, true);
  MeasuredTurns second = ExampleTurns(0.1, false);
  second.subjects[0] = {.subject = SyncBnSubject::kLocal,
                        .missing = "no such type"};
  report.layers = {
      DeriveLayer(settings, {ShapeSet::kResNet18, 32, 28, 28, 64}, first),
      DeriveLayer(settings, {ShapeSet::kDetection, 2, 200, 304, 256}, second)};
  AddNotes(first, report);
  AddNotes(second, report);
  report.network = DeriveNetwork(settings, NetworkTurns());
  return report;
}

}  // namespace lockstep::benchmarks
