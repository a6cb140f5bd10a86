// Early return on error. Each macro evaluates its expression once.
#ifndef LOCKSTEP_BASE_STATUS_MACROS_H_
#define LOCKSTEP_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status of `expr` from the enclosing function unless it is OK.
#define LOCKSTEP_RETURN_IF_ERROR(expr)                 \
  do {                                                 \
    absl::Status lockstep_status = (expr);             \
    if (!lockstep_status.ok()) return lockstep_status; \
  } while (false)

// Assigns the value of `expr`, an absl::StatusOr, to `lhs`, which may be a
// declaration. On error returns the status of `expr` from the enclosing
// function.
#define LOCKSTEP_ASSIGN_OR_RETURN(lhs, expr) \
  LOCKSTEP_ASSIGN_OR_RETURN_IMPL_(           \
      LOCKSTEP_CONCAT_(lockstep_statusor_, __LINE__), lhs, expr)

#define LOCKSTEP_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr) \
  auto statusor = (expr);                                    \
  if (!statusor.ok()) return std::move(statusor).status();   \
  lhs = *std::move(statusor)

#define LOCKSTEP_CONCAT_(a, b) LOCKSTEP_CONCAT_INNER_(a, b)
#define LOCKSTEP_CONCAT_INNER_(a, b) a##b

#endif  // LOCKSTEP_BASE_STATUS_MACROS_H_
