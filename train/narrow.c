/*
 * binary16 has 5 bits of exponent, biased by 15, and 10 of fraction; float 8, biased by 127, and 23.
 */
#include "narrow.h"

#include <math.h>
#include <string.h>

#include "cpu/numbers.h"

enum { WRITTEN_AT_ONCE = 4096 };

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* bits / 2^shift to the nearest, halves to even; shift from 1 to 31. */
static uint32_t shift_rounded(uint32_t bits, int shift)
{
    const uint32_t half = 1u << (shift - 1);
    return (bits + half - 1 + (bits >> shift & 1)) >> shift;
}

size_t narrow_size(narrow_type type)
{
    return type == NARROW_F32 ? 4 : 2;
}

uint16_t narrow_f16(float x)
{
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
    if (size >= 0x477ff000) /* 65520, half-way to what would be the next number */
        return (uint16_t)(sign | 0x7c00);
    if (size >= 0x38800000) /* 2^-14, the smallest of full precision */
        return (uint16_t)(sign | shift_rounded(size - (112u << 23), 13));
    const int exponent = (int)(size >> 23), shift = 126 - exponent; /* multiples of 2^-24 */
    if (shift > 24)
        return (uint16_t)sign;
    return (uint16_t)(sign | shift_rounded((size & 0x7fffff) | 0x800000, shift));
}

static float widen_f16(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, size = x & 0x7fff;
    if (size >= 0x7c00)
        return float_of(sign | 0x7f800000 | (size & 0x3ff) << 13);
    if (size < 0x400) {
        const float small = (float)size * 0x1p-24f;
        return sign ? -small : small;
    }
    return float_of(sign | ((size << 13) + (112u << 23)));
}

static float widened(narrow_type type, uint16_t x)
{
    return type == NARROW_F16 ? widen_f16(x) : widen(x);
}

static uint16_t narrowed(narrow_type type, float x)
{
    return type == NARROW_F16 ? narrow_f16(x) : round_bf16(x);
}

void narrow_read(narrow_type type, const void *bytes, int64_t count, float *out)
{
    if (count > 0 && type == NARROW_F32)
        memcpy(out, bytes, (size_t)count * sizeof *out);
    for (int64_t i = 0; i < count && type != NARROW_F32; ++i) {
        uint16_t x;
        memcpy(&x, (const char *)bytes + 2 * i, sizeof x);
        out[i] = widened(type, x);
    }
}

bool narrow_write(narrow_type type, const float *numbers, int64_t count, FILE *stream)
{
    uint16_t piece[WRITTEN_AT_ONCE];
    if (type == NARROW_F32)
        return count == 0 || fwrite(numbers, (size_t)count * sizeof *numbers, 1, stream) == 1;
    for (int64_t done = 0, now; done < count; done += now) {
        now = count - done < WRITTEN_AT_ONCE ? count - done : WRITTEN_AT_ONCE;
        for (int64_t i = 0; i < now; ++i)
            piece[i] = narrowed(type, numbers[done + i]);
        if (fwrite(piece, (size_t)now * sizeof *piece, 1, stream) != 1)
            return false;
    }
    return true;
}

int64_t narrow_overflow(narrow_type type, const float *numbers, int64_t count)
{
    for (int64_t i = 0; i < count && type != NARROW_F32; ++i)
        if (isfinite(numbers[i]) && !isfinite(widened(type, narrowed(type, numbers[i]))))
            return i;
    return -1;
}
