/*
 * SHA-256. A block of 16 words is expanded to 64, one per round; the round constants are the first 32 bits of the
 * fractional parts of the cube roots of the first 64 primes.
 */
#include "sha256.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "error.h"

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int count)
{
    return x >> count | x << (32 - count);
}

static void expand(const unsigned char *block, uint32_t w[64])
{
    for (int i = 0; i < 16; ++i)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; ++i) {
        uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
}

static void compress(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64], v[8];
    expand(block, w);
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; ++i) {
        uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
        uint32_t choose = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t1 = v[7] + s1 + choose + constants[i] + w[i];
        uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + s0 + majority;
    }
    for (int i = 0; i < 8; ++i)
        state[i] += v[i];
}

void sha256_begin(sha256 *s)
{
    *s = (sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(sha256 *s, const void *bytes, size_t count)
{
    const unsigned char *p = bytes;
    while (count) {
        size_t used = (size_t)(s->bytes % 64);
        size_t take = count < 64 - used ? count : 64 - used;
        if (take == 64) {
            compress(s->state, p);
        } else {
            memcpy(s->pending + used, p, take);
            if (used + take == 64)
                compress(s->state, s->pending);
        }
        s->bytes += take;
        p += take;
        count -= take;
    }
}

void sha256_end(sha256 *s, char hex[65])
{
    static const unsigned char padding[64] = {0x80};
    unsigned char length[8];
    uint64_t bits = s->bytes * 8;
    for (int i = 0; i < 8; ++i)
        length[i] = (unsigned char)(bits >> (56 - 8 * i));
    size_t used = (size_t)(s->bytes % 64);
    sha256_add(s, padding, used < 56 ? 56 - used : 120 - used);
    sha256_add(s, length, 8);
    for (int i = 0; i < 8; ++i)
        snprintf(hex + 8 * i, 9, "%08x", s->state[i]);
}

bool sha256_file(const char *path, char hex[65])
{
    unsigned char buffer[1 << 15];
    sha256 s;
    FILE *stream = fopen(path, "rb");
    if (!stream)
        return train_fail("%s: %s", path, strerror(errno));
    sha256_begin(&s);
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, stream)) > 0;)
        sha256_add(&s, buffer, got);
    bool failed = ferror(stream);
    fclose(stream);
    sha256_end(&s, hex);
    return !failed || train_fail("%s: cannot be read", path);
}
