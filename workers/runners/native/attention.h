/* Attention over KV in blocks, for the sequences of one step. */
#pragma once

#include "simd.h"

#define BLOCK 16 /* tokens */

/* One step: sequences packed behind one another. */
typedef struct {
    int64_t spans, tokens, items;
    const int32_t *first;       /* [spans] first row in the step */
    const int32_t *start;       /* [spans] tokens that are in the blocks already */
    const int32_t *length;      /* [spans] new tokens */
    const int32_t *table_first; /* [spans] where a span's blocks begin in `table` */
    const int32_t *table;       /* block numbers */
    const int32_t *item_span;   /* [items] pieces of work, the longest first */
    const int32_t *item_token;  /* [items] the piece's first new token in its span */
} Spans;

/* Where a layer's KV is. Keys of a (block, head): [head_dim, BLOCK]; values: [BLOCK, head_dim]. */
typedef struct {
    void *keys, *values;   /* of block 0 */
    int64_t block_stride;  /* elements from a block to the next one */
    int32_t bf16, heads, kv_heads, head_dim;
    int32_t item_tokens;   /* new tokens of a piece of work, at most */
    int32_t window;        /* tokens seen, the own one included; 0: all */
    float scaling;
} LayerKV;

/* All threads of the calling region take part. Row strides in floats. */
void attend(const Spans *spans, const LayerKV *kv, const float *query, int64_t query_stride, float *out,
            int64_t out_stride);

/* Store one row's key and value (floats, [kv_heads, head_dim]) at its place. */
void store_kv(const Spans *spans, const LayerKV *kv, int64_t span, int64_t token, const float *key,
              const float *value);
