/* Softmax of the composed baseline for AVX2; the build gives this file its flags. */
#define VECTOR_BYTES  32
#define SOFTMAX_WORDS composed_softmax_avx2
#include "composed/softmax.h"
