// The product as its formulas say it; every level is tested against this.
#pragma once

#include "kernels/w4a8/product.h"

namespace gramian::w4a8::reference {

// q [rows, k] times channels first .. first + count -> acc [rows, count].
void multiply(const Weights& weights, int64_t first, int64_t count, const int8_t* q, int64_t rows,
              int32_t* acc);

}  // namespace gramian::w4a8::reference
