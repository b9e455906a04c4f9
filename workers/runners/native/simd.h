/* Vectors of floats as GCC and clang know them, and what is done with them everywhere.

   One source for AVX2 (8 lanes), AVX-512 (16) and anything else the compiler can lower 8 lanes to; -march=native
   decides. Knows no layouts. */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#define LANES 16
#define MAX_ROWS 12 /* accumulators: 12 rows of two vectors, of 32 registers */
#else
#define LANES 8
#define MAX_ROWS 6 /* of 16 registers */
#endif

#define CACHE_LINE 64 /* bytes */

#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));

INLINE vf splat(float x) { return x - (vf){0}; }

INLINE vf load(const float *from) {
    vf v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store(float *to, vf v) { memcpy(to, &v, sizeof v); }

/* `element` values in, of either format. bfloat16 is the upper half of a float. */
INLINE vf load_from(const void *from, long element, int bf16) {
    if (!bf16) return load((const float *)from + element);
    vh half;
    memcpy(&half, (const uint16_t *)from + element, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
}

INLINE float get_from(const void *from, long element, int bf16) {
    if (!bf16) return ((const float *)from)[element];
    uint32_t bits = (uint32_t)((const uint16_t *)from)[element] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rounds to the nearest even, as torch does. */
INLINE void put_to(void *to, long element, int bf16, float x) {
    if (!bf16) {
        ((float *)to)[element] = x;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) bits |= 1u << 22; /* stays not-a-number when the lower half is cut off */
    else bits += 0x7fff + (bits >> 16 & 1);
    ((uint16_t *)to)[element] = (uint16_t)(bits >> 16);
}

INLINE vf choose(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

INLINE float sum_of(vf v) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
}

INLINE float max_of(vf v) {
    float max = v[0];
    for (int i = 1; i < LANES; i++) max = v[i] > max ? v[i] : max;
    return max;
}

/* e^x to about one unit in the last place: 2^n times a polynomial on |r| <= ln 2 / 2 (coefficients: Cephes, expf).
   Below -87 it is exactly 0, and what is not a number stays so. */
INLINE vf exp_of(vf x) {
    vi tiny = x < splat(-87.0f);
    x = choose(x > splat(88.0f), splat(88.0f), choose(tiny, splat(-87.0f), x));
    const vf magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    vf n = x * splat(1.44269504088896341f) + magic - magic;
    vf r = x - n * splat(0.693359375f) + n * splat(2.12194440e-4f);
    vf p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * r * r + r + splat(1.0f);
    vf scale = (vf)((__builtin_convertvector(n, vi) + 127) << 23);
    return choose(tiny, splat(0.0f), p * scale);
}

/* The kernel of every product here: `rows` x (vectors * LANES) of C, over k. a: floats, row r at a + r * lda; b: row
   of k at b + k * ldb elements, of either format. From C itself where `onto`, else from nothing. Each row is summed in
   the order of k, whatever rows are beside it. While it computes, memory brings `stride` bytes a turn of k from `ahead`:
   whatever is multiplied next. All but the pointers must be constants where this is inlined. */
INLINE void multiply_tile(const int rows, const int vectors, const int bf16, long k, const float *a, long lda,
                          const void *b, long ldb, float *c, long ldc, int onto, const char *ahead, long stride) {
    vf sum[MAX_ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[r][v] = onto ? load(c + r * ldc + v * LANES) : splat(0);
    for (long i = 0; i < k; i++) {
        __builtin_prefetch(ahead + i * stride, 0, 2);
        if (vectors * LANES * 4 > CACHE_LINE) __builtin_prefetch(ahead + i * stride + stride / 2, 0, 2);
        vf right[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) right[v] = load_from(b, i * ldb + v * LANES, bf16);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            vf left = splat(a[r * lda + i]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) store(c + r * ldc + v * LANES, sum[r][v]);
}

/* The same for any number of rows up to MAX_ROWS. */
INLINE void multiply_rows(int rows, const int vectors, const int bf16, long k, const float *a, long lda,
                          const void *b, long ldb, float *c, long ldc, int onto, const char *ahead, long stride) {
    switch (rows) {
#define CASE(N)                                                                          \
    case N:                                                                              \
        multiply_tile(N, vectors, bf16, k, a, lda, b, ldb, c, ldc, onto, ahead, stride); \
        return;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if MAX_ROWS > 6
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
    }
}
