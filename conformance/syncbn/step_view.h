// One step of a run on all ranks, beside what must have come of it.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_STEP_VIEW_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_STEP_VIEW_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_exam.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/batch_norm_subject.h"
#include "conformance/syncbn/batch_norm_values.h"

namespace lockstep {

// An error and its bound.
struct BoundedError {
  double error = 0;
  double bound = 1;
};

// Borrows all of it.
struct StepView {
  const BatchNormExam& exam;
  const BatchNormVariant& variant;
  std::span<const RankRun> ranks;
  int step;
  // Where MeasureRun keeps the error that is largest beside its bound.
  BoundedError* largest = nullptr;

  const ExamStep& exam_step() const {
    return exam.steps[static_cast<size_t>(step)];
  }
  const ReferenceBatch& BatchOn(int rank) const {
    return exam_step().ranks[static_cast<size_t>(rank)];
  }
  int world_size() const { return exam.problem.world_size; }
  bool tracked() const { return variant.tracking != Tracking::kNone; }
  const RankStep& Of(int rank) const {
    return ranks[static_cast<size_t>(rank)][static_cast<size_t>(step)];
  }
  // Whether a rank normalises with its own batch alone.
  bool UsesOwn() const { return !exam_step().training && !tracked(); }
  const ReferenceStatistics& StatisticsOn(int rank) const {
    return UsesOwn() ? exam_step().own_statistics[static_cast<size_t>(rank)]
                     : exam_step().statistics;
  }
  // Of a rank's batch alone, in training too.
  ReferenceStatistics OwnStatisticsOf(int rank) const {
    return StatisticsOf(exam.layer, {&BatchOn(rank), 1}, exam.precision);
  }
  const ReferenceResult& WantOn(int rank) const {
    return UsesOwn() ? exam_step().own_want[static_cast<size_t>(rank)]
                     : exam_step().want;
  }
  size_t IndexOf(int rank) const {
    return UsesOwn() ? 0 : static_cast<size_t>(rank);
  }
  bool MustRefuse(int rank) const {
    return variant.semantics.refuses_one_value && StatisticsOn(rank).count == 1;
  }
  std::vector<double> Activations(int rank, const std::string& bytes) const {
    return FromLayout(exam.ShapeOf(step, rank, variant.layout),
                      Decode(exam.problem.type, bytes));
  }
  std::vector<double> Statistics(const std::string& bytes) const {
    return Decode(exam.statistics_type, bytes);
  }
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_STEP_VIEW_H_
