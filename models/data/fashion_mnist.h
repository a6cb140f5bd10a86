// Fashion-MNIST, and MNIST, which has the same four files.
#ifndef LOCKSTEP_MODELS_DATA_FASHION_MNIST_H_
#define LOCKSTEP_MODELS_DATA_FASHION_MNIST_H_

#include <string>

#include "absl/status/statusor.h"
#include "models/data/dataset.h"

namespace lockstep {

// Where the Debian package dataset-fashion-mnist installs it.
inline constexpr char kFashionMnistDir[] = "/usr/share/datasets/fashion-mnist";

// 1 x 28 x 28 images of 10 classes; 60,000 to train on and 10,000 to test with
// in the original, any number of each here.
struct FashionMnist {
  Dataset train;
  Dataset test;
};

// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte,
// t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte from a folder; each may be
// plain or compressed, with or without `.gz` at the end of its name (without is
// tried first). Cost: 55 MB of memory and half a second for the original.
//
// Errors name the file and the fault: kNotFound if the folder or a file is
// missing, with the package and the flag that help; kInvalidArgument if images
// are not 28 x 28, a label is above 9 or counts differ; those of idx.h.
absl::StatusOr<FashionMnist> LoadFashionMnist(
    const std::string& dir = kFashionMnistDir);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_FASHION_MNIST_H_
