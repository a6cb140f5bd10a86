#include "standin/cublas/product.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/data_types.h"
#include "standin/cublas/cublasLt.h"
#include "standin/elements.h"
#include "standin/memory.h"

namespace lockstep::standin::cublas {
namespace {

using Matrix = cublasLtMatrixLayoutOpaque_t;

DataType TypeOf(cudaDataType_t type) {
  return type == CUDA_R_16F    ? DataType::kFloat16
         : type == CUDA_R_16BF ? DataType::kBFloat16
                               : DataType::kFloat32;
}

// Returns the place of an element in its matrix.
int64_t PlaceOf(const Matrix& matrix, int64_t row, int64_t col) {
  return matrix.order == CUBLASLT_ORDER_ROW ? row * matrix.ld + col
                                            : col * matrix.ld + row;
}

// Returns the number of bytes from the first element of the first matrix to the
// end of the last matrix.
size_t BytesOf(const Matrix& matrix) {
  const int64_t elements = PlaceOf(matrix, matrix.rows - 1, matrix.cols - 1) +
                           1 + (matrix.batch_count - 1) * matrix.batch_stride;
  return static_cast<size_t>(elements * SizeOf(TypeOf(matrix.type)));
}

cublasStatus_t CheckTypes(const Product& p) {
  if (p.desc.scale != CUDA_R_32F) return NotSupported("scales are float32");
  if (p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 &&
      p.a.type != CUDA_R_32F) {
    return NotSupported("TF32 is for float32");
  }
  if (p.a.type != p.b.type || p.c.type != p.d.type ||
      (p.d.type != p.a.type && p.d.type != CUDA_R_32F)) {
    return NotSupported(
        "A and B must have one type, and C and D the same or float32");
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CheckShapes(const Product& p) {
  for (const Matrix* const each : {&p.a, &p.b, &p.c, &p.d}) {
    const int64_t length =
        each->order == CUBLASLT_ORDER_ROW ? each->cols : each->rows;
    if (each->rows < 1 || each->cols < 1 || each->ld < length) {
      return Invalid("a matrix is empty or has a small leading dimension");
    }
    if (each->batch_count != p.d.batch_count || each->batch_stride < 0) {
      return Invalid("the matrices have different batches");
    }
  }
  const bool a_turned = p.desc.transa == CUBLAS_OP_T;
  const bool b_turned = p.desc.transb == CUBLAS_OP_T;
  if ((a_turned ? p.a.cols : p.a.rows) != p.m() ||
      (b_turned ? p.b.rows : p.b.cols) != p.n() ||
      (b_turned ? p.b.cols : p.b.rows) != p.k() || p.c.rows != p.m() ||
      p.c.cols != p.n()) {
    return Invalid("the matrices' sizes do not match");
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CheckEpilogue(const Product& p) {
  switch (p.desc.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
      return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_BGRADB:
      break;
    default:
      return NotSupported("the epilogue is not modelled");
  }
  if (p.d.order != CUBLASLT_ORDER_COL) {
    return NotSupported("epilogues need a D in column-major order");
  }
  if (p.desc.epilogue == CUBLASLT_EPILOGUE_RELU) return CUBLAS_STATUS_SUCCESS;
  if (p.d.batch_count != 1) {
    return NotSupported("bias and its gradient have no batches");
  }
  return p.desc.bias == nullptr ? Invalid("the bias pointer is not set")
                                : CUBLAS_STATUS_SUCCESS;
}

// Returns op(matrix) of one batch as rows in float64.
std::vector<double> Load(const Matrix& matrix, const void* data, bool turned,
                         int64_t batch) {
  const int64_t rows = turned ? matrix.cols : matrix.rows;
  const int64_t cols = turned ? matrix.rows : matrix.cols;
  std::vector<double> values;
  values.reserve(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const int64_t place =
          turned ? PlaceOf(matrix, j, i) : PlaceOf(matrix, i, j);
      values.push_back(ReadElement(TypeOf(matrix.type), data,
                                   batch * matrix.batch_stride + place));
    }
  }
  return values;
}

// Writes D of one batch from the sums [m, n].
void Finish(const Product& p, const std::vector<double>& sums, int64_t batch) {
  const DataType type = TypeOf(p.d.type);
  std::vector<double> added(sums.size());
  if (p.beta != 0) added = Load(p.c, p.on_c, /*turned=*/false, batch);
  for (int64_t i = 0; i < p.m(); ++i) {
    const double bias =
        p.has(CUBLASLT_EPILOGUE_BIAS) ? ReadElement(type, p.desc.bias, i) : 0;
    for (int64_t j = 0; j < p.n(); ++j) {
      const auto at = static_cast<size_t>(i * p.n() + j);
      double value = p.alpha * sums[at] + p.beta * added[at] + bias;
      if (p.has(CUBLASLT_EPILOGUE_RELU) && value < 0) value = 0;
      WriteElement(type, value, p.on_d,
                   batch * p.d.batch_stride + PlaceOf(p.d, i, j));
    }
  }
}

}  // namespace

cublasStatus_t Refuse(cublasStatus_t status, const char* why) {
  std::fprintf(stderr, "stand-in for cuBLASLt: %s\n", why);
  return status;
}
cublasStatus_t Invalid(const char* why) {
  return Refuse(CUBLAS_STATUS_INVALID_VALUE, why);
}
cublasStatus_t NotSupported(const char* why) {
  return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
}

cublasStatus_t CheckProduct(const Product& p) {
  for (const auto check : {CheckTypes, CheckShapes, CheckEpilogue}) {
    const cublasStatus_t status = check(p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasLtMatmulAlgo_t MakeAlgo(const Product& p, uint64_t workspace_bytes,
                              const std::array<uint32_t, 4>& alignments) {
  return {{workspace_bytes, static_cast<uint64_t>(p.m()),
           static_cast<uint64_t>(p.n()), static_cast<uint64_t>(p.k()),
           uint64_t{alignments[0]} << 32 | alignments[1],
           uint64_t{alignments[2]} << 32 | alignments[3], 0, 0}};
}

cublasStatus_t AdoptAlgo(const cublasLtMatmulAlgo_t* algo, Product& p) {
  const size_t given = p.workspace_bytes;
  p.workspace_bytes = 0;
  if (algo == nullptr) return CUBLAS_STATUS_SUCCESS;
  const auto& data = algo->data;
  if (data[1] != static_cast<uint64_t>(p.m()) ||
      data[2] != static_cast<uint64_t>(p.n()) ||
      data[3] != static_cast<uint64_t>(p.k())) {
    return NotSupported("the algorithm is for other sizes");
  }
  if (data[0] > given) return Invalid("the workspace is too small");
  const void* const pointers[] = {p.on_a, p.on_b,
                                  p.beta == 0 ? nullptr : p.on_c, p.on_d};
  for (size_t i = 0; i < 4; ++i) {
    const auto alignment =
        static_cast<uint32_t>(data[4 + i / 2] >> (i % 2 == 0 ? 32 : 0));
    if (reinterpret_cast<uintptr_t>(pointers[i]) % alignment != 0) {
      return Invalid("a matrix lacks the alignment that was promised");
    }
  }
  p.workspace_bytes = data[0];
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CheckMemory(const Product& p) {
  const bool reads_c = p.beta != 0;
  if (!IsDeviceRange(p.on_a, BytesOf(p.a)) ||
      !IsDeviceRange(p.on_b, BytesOf(p.b)) ||
      (reads_c && !IsDeviceRange(p.on_c, BytesOf(p.c))) ||
      !IsDeviceRange(p.on_d, BytesOf(p.d))) {
    return Invalid("a matrix does not lie in device memory");
  }
  const bool of_b = p.has(CUBLASLT_EPILOGUE_BGRADB);
  const auto bias_bytes =
      static_cast<size_t>((of_b ? p.n() : p.m()) * SizeOf(TypeOf(p.d.type)));
  if ((of_b || p.has(CUBLASLT_EPILOGUE_BIAS)) &&
      !IsDeviceRange(p.desc.bias, bias_bytes)) {
    return Invalid("the bias does not lie in device memory");
  }
  constexpr uintptr_t kWorkspaceAlignment = 256;
  if (p.workspace_bytes > 0 &&
      reinterpret_cast<uintptr_t>(p.workspace) % kWorkspaceAlignment != 0) {
    return Invalid("the workspace is not aligned to 256 bytes");
  }
  return p.workspace_bytes > 0 && !IsDeviceRange(p.workspace, p.workspace_bytes)
             ? Invalid("the workspace does not lie in device memory")
             : CUBLAS_STATUS_SUCCESS;
}

void Multiply(const Product& p) {
  const auto overwrite_workspace = [&p] {
    if (p.workspace_bytes > 0) {
      std::memset(p.workspace, 0xff, p.workspace_bytes);
    }
  };
  overwrite_workspace();
  for (int64_t batch = 0; batch < p.d.batch_count; ++batch) {
    const std::vector<double> a =
        Load(p.a, p.on_a, p.desc.transa == CUBLAS_OP_T, batch);
    const std::vector<double> b =
        Load(p.b, p.on_b, p.desc.transb == CUBLAS_OP_T, batch);
    std::vector<double> sums(static_cast<size_t>(p.m() * p.n()));
    std::vector<double> b_sums(static_cast<size_t>(p.n()));
    for (int64_t l = 0; l < p.k(); ++l) {
      const double* const row = b.data() + l * p.n();
      for (int64_t i = 0; i < p.m(); ++i) {
        const double factor = a[static_cast<size_t>(i * p.k() + l)];
        double* const sum = sums.data() + i * p.n();
        for (int64_t j = 0; j < p.n(); ++j) sum[j] += factor * row[j];
      }
      for (size_t j = 0; j < b_sums.size(); ++j) b_sums[j] += row[j];
    }
    Finish(p, sums, batch);
    if (!p.has(CUBLASLT_EPILOGUE_BGRADB)) continue;
    for (int64_t j = 0; j < p.n(); ++j) {
      WriteElement(TypeOf(p.d.type), b_sums[static_cast<size_t>(j)],
                   p.desc.bias, j);
    }
  }
  overwrite_workspace();
}

}  // namespace lockstep::standin::cublas
