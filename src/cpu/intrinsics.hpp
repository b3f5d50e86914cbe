// immintrin.h without GCC 12's false alarm: the AVX-512 intrinsics pass a deliberately uninitialised register
// (_mm512_undefined_ps) as the source of lanes that no mask selects.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
