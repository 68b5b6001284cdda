// GRAMIAN_WIDE_VECTORS, behind the features of a target attribute with AVX-512: the compiler is to use whole registers. Clang knows
// no such word there, and would ignore the whole attribute.
#pragma once

#if defined(__clang__)
#define GRAMIAN_WIDE_VECTORS ""
#else
#define GRAMIAN_WIDE_VECTORS ",prefer-vector-width=512"
#endif
