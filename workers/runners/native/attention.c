/* Paged attention, decode and chunked prefill by the same code.

   The query heads that share a KV head are rows of one small product, for one token (a decode) or several (a chunk):
   keys and values are read once for all of them, where they lie. A (block, head) of keys is stored dimension by
   dimension, so 16 keys are the columns of the product with the query, and values token by token, so that the head's
   dimensions are the columns of the product with the probabilities: neither needs a transposition or a sum across a
   vector.

   Keys are taken in tiles of 256 positions counted from 0. A tile gives a maximum, a sum and a weighted value; tiles
   are merged in order (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022). Since tiles begin at fixed
   positions, and what a row doesn't see counts exactly 0, a token's result does not depend on how its sequence was cut
   into chunks or on what else is in the step: it is the same to the bit.

   Limit: one sequence's KV head is one thread's work, so a single long sequence uses as many threads as it has KV
   heads. */
#include "attention.h"

#include <math.h>

#define TILE 256
#define MAX_QUERY_ROWS 32
#define MAX_HEAD_DIM 256

typedef struct {
    int64_t rows;
    int64_t position[MAX_QUERY_ROWS];                  /* of the row's token */
    float query[MAX_QUERY_ROWS * MAX_HEAD_DIM];        /* scaled */
    float score[MAX_QUERY_ROWS * TILE];                /* then the probabilities, but for the sum */
    float tile_value[MAX_QUERY_ROWS * MAX_HEAD_DIM];
    float value[MAX_QUERY_ROWS * MAX_HEAD_DIM];
    float maximum[MAX_QUERY_ROWS], sum[MAX_QUERY_ROWS]; /* over the tiles so far */
} Work;

/* Blocks lie anywhere, so the hardware can't read ahead from one to the next: while a block is multiplied, the next one
   is asked for, a line a turn. */
INLINE void score_blocks(Work *w, const LayerKV *kv, const int bf16, const int32_t *table, int64_t blocks, int head) {
    const int64_t dim = kv->head_dim, size = bf16 ? 2 : 4, bytes = dim * BLOCK * size;
    for (int64_t b = 0; b < blocks; b++) {
        const char *keys = (const char *)kv->keys + table[b] * kv->block_stride * size + head * bytes;
        const char *next = (const char *)(b + 1 < blocks ? kv->keys : kv->values) +
                           table[b + 1 < blocks ? b + 1 : 0] * kv->block_stride * size + head * bytes;
        for (int64_t r = 0; r < w->rows; r += MAX_ROWS) {
            const int64_t few = w->rows - r < MAX_ROWS ? w->rows - r : MAX_ROWS;
            multiply_rows((int)few, BLOCK / LANES, bf16, dim, w->query + r * dim, dim, keys, BLOCK,
                          w->score + r * TILE + b * BLOCK, TILE, 0, next, BLOCK * size);
        }
    }
}

INLINE void weigh_blocks(Work *w, const LayerKV *kv, const int bf16, const int32_t *table, int64_t blocks, int head) {
    const int64_t dim = kv->head_dim, size = bf16 ? 2 : 4, bytes = dim * BLOCK * size;
    for (int64_t b = 0; b < blocks; b++) {
        const char *values = (const char *)kv->values + table[b] * kv->block_stride * size + head * bytes;
        const char *next = (const char *)kv->values + table[b + 1 < blocks ? b + 1 : b] * kv->block_stride * size +
                           head * bytes;
        for (int64_t r = 0; r < w->rows; r += MAX_ROWS) {
            const int64_t few = w->rows - r < MAX_ROWS ? w->rows - r : MAX_ROWS;
            for (int64_t d = 0; d < dim; d += BLOCK, next += BLOCK * BLOCK * size)
                multiply_rows((int)few, BLOCK / LANES, bf16, BLOCK, w->score + r * TILE + b * BLOCK, TILE,
                              values + d * size, dim, w->tile_value + r * dim + d, dim, b > 0, next, BLOCK * size);
        }
    }
}

/* Hide what row r doesn't see of the tile's `keys` positions from `base`; the scores become probabilities, but for the
   sum, which is returned with their maximum. Nothing seen: the maximum is -infinity. */
static void soften(Work *w, int64_t r, int64_t base, int64_t keys, int window, float *maximum, float *sum) {
    float *score = w->score + r * TILE;
    const int64_t last = w->position[r] - base;
    const int64_t first = window ? last - window + 1 : 0;
    for (int64_t i = 0; i < first && i < keys; i++) score[i] = -INFINITY;
    for (int64_t i = last < -1 ? 0 : last + 1; i < keys; i++) score[i] = -INFINITY;
    vf most = splat(-INFINITY), total = splat(0);
    for (int64_t i = 0; i < keys; i += LANES) {
        vf s = load(score + i);
        most = choose(s > most, s, most);
    }
    *maximum = max_of(most);
    const vf shift = splat(*maximum == -INFINITY ? 0 : *maximum);
    for (int64_t i = 0; i < keys; i += LANES) {
        vf p = exp_of(load(score + i) - shift);
        store(score + i, p);
        total += p;
    }
    *sum = sum_of(total);
}

/* Take a tile's result for row r into what the tiles before it gave. */
static void merge(Work *w, int64_t r, int64_t dim, float maximum, float sum) {
    const float before = w->maximum[r];
    /* Not-a-number scores leave the maximum at -infinity and the sum not a number: that must be seen. */
    if (maximum == -INFINITY && sum == 0) return;
    const float most = maximum > before ? maximum : before;
    const float keep = before == -INFINITY ? 0 : expf(before - most), take = expf(maximum - most);
    for (int64_t d = 0; d < dim; d += LANES) {
        vf old = load(w->value + r * dim + d), new = load(w->tile_value + r * dim + d);
        store(w->value + r * dim + d, old * splat(keep) + new * splat(take));
    }
    w->sum[r] = w->sum[r] * keep + sum * take;
    w->maximum[r] = most;
}

static void attend_item(Work *w, const Spans *s, const LayerKV *kv, int64_t item, int head, const float *query,
                        int64_t query_stride, float *out, int64_t out_stride) {
    const int64_t dim = kv->head_dim, group = kv->heads / kv->kv_heads;
    const int64_t span = s->item_span[item], token = s->item_token[item];
    const int64_t left = s->length[span] - token, tokens = left < kv->item_tokens ? left : kv->item_tokens;
    const int64_t row = s->first[span] + token, first_position = s->start[span] + token;
    w->rows = tokens * group;
    for (int64_t r = 0; r < w->rows; r++) {
        const float *from = query + (row + r / group) * query_stride + (head * group + r % group) * dim;
        for (int64_t d = 0; d < dim; d += LANES) store(w->query + r * dim + d, load(from + d) * splat(kv->scaling));
        w->position[r] = first_position + r / group;
        w->maximum[r] = -INFINITY;
        w->sum[r] = 0;
    }
    memset(w->value, 0, sizeof(float) * (size_t)(w->rows * dim));
    const int64_t oldest = kv->window && first_position >= kv->window ? first_position - kv->window + 1 : 0;
    const int64_t end = first_position + tokens;
    const int32_t *table = s->table + s->table_first[span];
    for (int64_t base = oldest / TILE * TILE; base < end; base += TILE) {
        const int64_t seen = end - base < TILE ? end - base : TILE, blocks = (seen + BLOCK - 1) / BLOCK;
        float maximum[MAX_QUERY_ROWS], sum[MAX_QUERY_ROWS];
        if (kv->bf16) score_blocks(w, kv, 1, table + base / BLOCK, blocks, head);
        else score_blocks(w, kv, 0, table + base / BLOCK, blocks, head);
        for (int64_t r = 0; r < w->rows; r++)
            soften(w, r, base, blocks * BLOCK, kv->window, maximum + r, sum + r);
        if (kv->bf16) weigh_blocks(w, kv, 1, table + base / BLOCK, blocks, head);
        else weigh_blocks(w, kv, 0, table + base / BLOCK, blocks, head);
        for (int64_t r = 0; r < w->rows; r++) merge(w, r, dim, maximum[r], sum[r]);
    }
    for (int64_t r = 0; r < w->rows; r++) {
        float *to = out + (row + r / group) * out_stride + (head * group + r % group) * dim;
        for (int64_t d = 0; d < dim; d += LANES) store(to + d, load(w->value + r * dim + d) / splat(w->sum[r]));
    }
}

void attend(const Spans *spans, const LayerKV *kv, const float *query, int64_t query_stride, float *out,
            int64_t out_stride) {
    static _Thread_local Work work __attribute__((aligned(64)));
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < spans->items * kv->kv_heads; i++)
        attend_item(&work, spans, kv, i / kv->kv_heads, (int)(i % kv->kv_heads), query, query_stride, out, out_stride);
}

void store_kv(const Spans *spans, const LayerKV *kv, int64_t span, int64_t token, const float *key,
              const float *value) {
    const int64_t position = spans->start[span] + token, slot = position % BLOCK, dim = kv->head_dim;
    const int64_t block = spans->table[spans->table_first[span] + position / BLOCK] * kv->block_stride;
    for (int64_t head = 0; head < kv->kv_heads; head++) {
        const int64_t at = block + head * dim * BLOCK;
        for (int64_t d = 0; d < dim; d++) {
            put_to(kv->keys, at + d * BLOCK + slot, kv->bf16, key[head * dim + d]);
            put_to(kv->values, at + slot * dim + d, kv->bf16, value[head * dim + d]);
        }
    }
}

/* For callers that compute everything else elsewhere: store all new KV of a step, then attend to it. */
void store_step_kv(const Spans *spans, const LayerKV *kv, const float *key, const float *value, int threads) {
    const int64_t row_floats = (int64_t)kv->kv_heads * kv->head_dim;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t span = 0; span < spans->spans; span++)
        for (int64_t token = 0; token < spans->length[span]; token++) {
            const int64_t row = (spans->first[span] + token) * row_floats;
            store_kv(spans, kv, span, token, key + row, value + row);
        }
}

void attend_step(const Spans *spans, const LayerKV *kv, const float *query, int64_t query_stride, float *out,
                 int64_t out_stride, int threads) {
#pragma omp parallel num_threads(threads)
    attend(spans, kv, query, query_stride, out, out_stride);
}
