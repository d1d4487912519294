/* Softmax of the composed baseline for AVX-512; the build gives this file its flags. */
#define VECTOR_BYTES  64
#define SOFTMAX_WORDS composed_softmax_avx512
#include "composed/softmax.h"
