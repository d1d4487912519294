/* Softmax of the composed baseline for any processor; the build gives this file its flags. */
#define VECTOR_BYTES  16
#define SOFTMAX_WORDS composed_softmax_generic
#include "composed/softmax.h"
