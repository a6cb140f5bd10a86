// Sums over the rows of a matrix, for each column. Only .cu files include this
// header.
#ifndef LOCKSTEP_MODELS_CUDA_COLUMN_SUMS_H_
#define LOCKSTEP_MODELS_CUDA_COLUMN_SUMS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace lockstep {

// The rows are divided into runs. A block takes one run of kColumnTile columns,
// and adds every kColumnLines-th row in each of its kColumnLines lines of
// threads.
inline constexpr int kColumnThreads = 256;
inline constexpr int kColumnTile = 32;
inline constexpr int kColumnLines = kColumnThreads / kColumnTile;

// Returns the number of runs. A run has 256 rows or more, unless there are
// fewer.
inline int64_t ColumnRuns(int64_t rows) {
  constexpr int64_t kRowsOfRun = 256;
  constexpr int64_t kMostRuns = 128;
  return std::clamp(rows / kRowsOfRun, int64_t{1}, kMostRuns);
}

// Returns the grid of a kernel whose blocks call SumColumns.
inline dim3 ColumnsGrid(int64_t rows, int64_t columns) {
  return dim3(static_cast<unsigned>((columns + kColumnTile - 1) / kColumnTile),
              static_cast<unsigned>(ColumnRuns(rows)));
}

// The rows of a matrix and of one run.
struct RowRuns {
  RowRuns(int64_t rows, int64_t columns)
      : rows(rows),
        rows_of_run((rows + ColumnRuns(rows) - 1) / ColumnRuns(rows)),
        columns(static_cast<int>(columns)) {}

  int64_t rows;
  int64_t rows_of_run;
  int columns;
};

// Calls term(row, column, values) for each row of run blockIdx.y and each
// column of the block, which sets values[0] to values[kSums - 1]. Then
// sums[k][run * columns + column] is the sum of values[k] over the run's rows,
// unless sums[k] is null. All threads of the block call it.
template <int kSums, typename Term>
__device__ inline void SumColumns(const RowRuns& runs, const Term& term,
                                  float* const (&sums)[kSums]) {
  __shared__ float line_sums[kSums][kColumnLines][kColumnTile];
  const int tile_column = static_cast<int>(threadIdx.x) % kColumnTile;
  const int line = static_cast<int>(threadIdx.x) / kColumnTile;
  const int column = static_cast<int>(blockIdx.x) * kColumnTile + tile_column;
  const int64_t begin = blockIdx.y * runs.rows_of_run;
  const int64_t end = begin + runs.rows_of_run < runs.rows
                          ? begin + runs.rows_of_run
                          : runs.rows;
  float of_thread[kSums] = {};
  if (column < runs.columns) {
    for (int64_t row = begin + line; row < end; row += kColumnLines) {
      float values[kSums];
      term(row, column, values);
      for (int k = 0; k < kSums; ++k) of_thread[k] += values[k];
    }
  }
  for (int k = 0; k < kSums; ++k) {
    line_sums[k][line][tile_column] = of_thread[k];
  }
  __syncthreads();
  if (line != 0 || column >= runs.columns) return;
  for (int k = 0; k < kSums; ++k) {
    if (sums[k] == nullptr) continue;
    float sum = of_thread[k];
    for (int other = 1; other < kColumnLines; ++other) {
      sum += line_sums[k][other][tile_column];
    }
    sums[k][int64_t{blockIdx.y} * runs.columns + column] = sum;
  }
}

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_COLUMN_SUMS_H_
