#include "ops/common/matmul_algorithms.h"

namespace pestle::ops {

int measured_algorithm(const ProductKey&, int, int) { return 0; }

}  // namespace pestle::ops
