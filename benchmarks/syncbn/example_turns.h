// For tests: turns whose numbers are easy to check by hand, and a report of
// them.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_EXAMPLE_TURNS_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_EXAMPLE_TURNS_H_

#include <vector>

#include "benchmarks/harness/testing.h"
#include "benchmarks/syncbn/results.h"
#include "benchmarks/syncbn/settings.h"
#include "benchmarks/syncbn/turn.h"

namespace lockstep::benchmarks {

inline TeamCall Call(double seconds) { return {.seconds = seconds}; }

// Returns calls of 1, 0.5, 2, 1 times `call`.
inline std::vector<TeamCall> Spread(const TeamCall& call) {
  std::vector<TeamCall> calls(4, call);
  calls[1].seconds /= 2;
  calls[2].seconds *= 2;
  return calls;
}

inline TeamTurn Measured(SyncBnSubject subject, double forward,
                         double backward) {
  return {.subject = subject,
          .forward = Spread(Call(forward)),
          .backward = Spread(Call(backward))};
}

// Returns forward and backward of SyncBN with timers.
inline TeamTurn Split(double seconds) {
  TeamCall forward = Call(1.3 * seconds), backward = Call(2.1 * seconds);
  forward.split.kernels = {0.25 * seconds, 0.01 * seconds, 0.5 * seconds, 0, 0};
  forward.split.communication = 0.25 * seconds;
  forward.split.wait = 0.2 * seconds;
  forward.split.other = 0.04 * seconds;
  forward.messages = 1;
  forward.message_bytes = 528;
  backward.split.kernels = {0, 0, 0, 0.8 * seconds, 0.8 * seconds};
  backward.split.communication = 0.25 * seconds;
  backward.split.wait = 0.1 * seconds;
  return {.subject = SyncBnSubject::kSplit,
          .forward = Spread(forward),
          .backward = Spread(backward)};
}

inline MeasuredTurns NetworkTurns() {
  MeasuredTurns turns = {
      .rounds = 4,
      .subjects = {Measured(SyncBnSubject::kLocal, 0.8, 0),
                   Measured(SyncBnSubject::kSync, 1, 0), Split(1)}};
  for (TeamTurn& subject : turns.subjects) subject.backward.clear();
  for (TeamCall& step : turns.subjects[2].forward) {
    step.split.kernels = {};
    step.split.other += 0.76;
    step.messages = 34;
    step.message_bytes = 62736;
  }
  return turns;
}

// Returns turns of a layer in which everything takes a simple multiple of
// `seconds`: local BN 1 forward and 2 backward, SyncBN 1.25 and 2, its message
// 0.25 each, PyTorch 2 and 3, a copy of two tensors 1.
inline MeasuredTurns ExampleTurns(double seconds, bool torch) {
  MeasuredTurns turns = {
      .rounds = 4,
      .subjects = {
          Measured(SyncBnSubject::kLocal, seconds, 2 * seconds),
          Measured(SyncBnSubject::kSync, 1.25 * seconds, 2 * seconds),
          Split(seconds),
          Measured(SyncBnSubject::kOwnLocal, 1.25 * seconds, 1.5 * seconds),
          Measured(SyncBnSubject::kMessage, 0.25 * seconds, 0.25 * seconds),
          Measured(SyncBnSubject::kCopy, seconds, 0)}};
  turns.subjects.back().backward.clear();
  if (torch) {
    turns.subjects.push_back(
        Measured(SyncBnSubject::kTorch, 2 * seconds, 3 * seconds));
    turns.subjects.back().note = "PyTorch 2.1 (python3); it is an example";
  }
  return turns;
}

// Returns a layer of ResNet-18, a layer of the detection set without PyTorch
// and local BN, and the network, whose step misses its bar.
inline SyncBnReport ExampleSyncBnReport() {
  SyncBnReport report;
  SyncBnSettings& settings = report.settings;
  settings.sets = {ShapeSet::kResNet18, ShapeSet::kDetection};
  report.origin = ExampleOrigin("syncbn --shapes=resnet18_d2l,detection");
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

inline constexpr LayerShape kShape = {ShapeSet::kResNet18, 32, 28, 28, 64};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_EXAMPLE_TURNS_H_
