/* One forward of a decoder of the Llama family, from embedded tokens to logits: one call, one parallel region.

   Threads meet after each stage of a layer (norm, QKV, rotation and store, attention, output, norm, gate and up, down);
   between two stages nothing returns to Python and nothing is allocated. Activations are floats, whatever the format
   of weights and KV. */
#include <math.h>
#include <omp.h>

#include "attention.h"
#include "gemm.h"

enum Stage { PRODUCTS, ATTENTION, REST, HEAD, STAGES };

typedef struct {
    const float *attention_norm, *mlp_norm; /* [hidden] */
    const float *query_norm, *key_norm;     /* [head_dim], a head at a time; or null */
    Linear qkv, output, gate_up, down;
    int64_t window; /* 0: none */
    int64_t rotary; /* 0: this layer has no position embedding */
} Layer;

typedef struct {
    int64_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary;
    int64_t bf16, gelu;
    float norm_epsilon, scaling;
    const Layer *layer;
    const float *final_norm;
    Linear head;
} Decoder;

/* Activations; each [tokens of the largest step, …], rows of whole vectors. */
typedef struct {
    float *hidden;    /* [tokens, hidden]: in: embedded tokens; the residual stream */
    float *normed;    /* [tokens, hidden]; out: behind the last norm, [samples + embeddings, hidden] */
    float *qkv;       /* [tokens, (heads + 2 kv_heads) head_dim] */
    float *attended;  /* [tokens, heads head_dim] */
    float *activated; /* [tokens, intermediate] */
} Buffers;

typedef struct {
    Spans spans;
    const float *cosine, *sine; /* [positions, head_dim / 2] */
    char *blocks;               /* [blocks, layers, 2, kv_heads head_dim BLOCK] */
    int64_t block_stride;       /* elements */
    int64_t item_tokens;
    const int32_t *wanted; /* [samples + embeddings] rows whose logits, and then rows whose hidden states are wanted */
    int64_t samples, embeddings;
    float *logits;   /* [samples, vocabulary] */
    double *seconds; /* [STAGES], added to */
} Step;

static void norm_row(const float *x, const float *weight, int64_t n, float epsilon, float *out) {
    vf squares = splat(0);
    float tail = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) squares += load(x + i) * load(x + i);
    for (; i < n; i++) tail += x[i] * x[i];
    const float scale = 1.0f / sqrtf((sum_of(squares) + tail) / (float)n + epsilon);
    for (i = 0; i + LANES <= n; i += LANES) store(out + i, load(x + i) * splat(scale) * load(weight + i));
    for (; i < n; i++) out[i] = x[i] * scale * weight[i];
}

/* Pairs are (i, i + half), as the published weights of these families want it. */
static void rotate(float *x, int64_t half, const float *cosine, const float *sine) {
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cosine[i] - b * sine[i];
        x[half + i] = b * cosine[i] + a * sine[i];
    }
}

static int64_t span_of(const Spans *spans, int64_t row) {
    int64_t low = 0, high = spans->spans - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (spans->first[middle] <= row) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* Norms and rotation of a row's query and key heads, and its KV into the blocks. */
static void place_row(const Decoder *m, const Layer *layer, const Step *step, const LayerKV *kv, float *qkv,
                      int64_t row) {
    const int64_t span = span_of(&step->spans, row), token = row - step->spans.first[span];
    const int64_t dim = m->head_dim, position = step->spans.start[span] + token;
    for (int64_t head = 0; head < m->heads + m->kv_heads; head++) {
        float *x = qkv + head * dim;
        const float *weight = head < m->heads ? layer->query_norm : layer->key_norm;
        if (weight) norm_row(x, weight, dim, m->norm_epsilon, x);
        if (layer->rotary) rotate(x, dim / 2, step->cosine + position * dim / 2, step->sine + position * dim / 2);
    }
    store_kv(&step->spans, kv, span, token, qkv + m->heads * dim, qkv + (m->heads + m->kv_heads) * dim);
}

static double lap(double *seconds, enum Stage stage, double since) {
    const double now = omp_get_wtime();
    if (omp_get_thread_num() == 0) seconds[stage] += now - since;
    return now;
}

static double run_layer(const Decoder *m, const Layer *layer, const Buffers *b, const Step *step, LayerKV *kv,
                        double since) {
    const int64_t tokens = step->spans.tokens, dim = m->head_dim, qkv_row = (m->heads + 2 * m->kv_heads) * dim;
    const int bf16 = (int)m->bf16;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < tokens; r++)
        norm_row(b->hidden + r * m->hidden, layer->attention_norm, m->hidden, m->norm_epsilon,
                 b->normed + r * m->hidden);
    since = lap(step->seconds, REST, since);
    linear(&layer->qkv, bf16, b->normed, m->hidden, tokens, b->qkv, qkv_row, qkv_row, STORE);
    since = lap(step->seconds, PRODUCTS, since);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < tokens; r++) place_row(m, layer, step, kv, b->qkv + r * qkv_row, r);
    since = lap(step->seconds, REST, since);
    attend(&step->spans, kv, b->qkv, qkv_row, b->attended, m->heads * dim);
    since = lap(step->seconds, ATTENTION, since);
    linear(&layer->output, bf16, b->attended, m->heads * dim, tokens, b->hidden, m->hidden, m->hidden, ADD);
    since = lap(step->seconds, PRODUCTS, since);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < tokens; r++)
        norm_row(b->hidden + r * m->hidden, layer->mlp_norm, m->hidden, m->norm_epsilon, b->normed + r * m->hidden);
    since = lap(step->seconds, REST, since);
    linear(&layer->gate_up, bf16, b->normed, m->hidden, tokens, b->activated, m->intermediate, m->intermediate,
           m->gelu ? GATE_GELU : GATE_SILU);
    linear(&layer->down, bf16, b->activated, m->intermediate, tokens, b->hidden, m->hidden, m->hidden, ADD);
    return lap(step->seconds, PRODUCTS, since);
}

void decoder_forward(const Decoder *m, const Buffers *b, const Step *step, int threads) {
    const int64_t layer_elements = 2 * m->kv_heads * m->head_dim * BLOCK, size = m->bf16 ? 2 : 4;
#pragma omp parallel num_threads(threads)
    {
        double since = omp_get_wtime();
        for (int64_t l = 0; l < m->layers; l++) {
            char *keys = step->blocks + l * layer_elements * size;
            LayerKV kv = {
                .keys = keys,
                .values = keys + layer_elements / 2 * size,
                .block_stride = step->block_stride,
                .bf16 = (int32_t)m->bf16,
                .heads = (int32_t)m->heads,
                .kv_heads = (int32_t)m->kv_heads,
                .head_dim = (int32_t)m->head_dim,
                .item_tokens = (int32_t)step->item_tokens,
                .window = (int32_t)m->layer[l].window,
                .scaling = m->scaling,
            };
            since = run_layer(m, m->layer + l, b, step, &kv, since);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < step->samples + step->embeddings; i++)
            norm_row(b->hidden + (int64_t)step->wanted[i] * m->hidden, m->final_norm, m->hidden, m->norm_epsilon,
                     b->normed + i * m->hidden);
        since = lap(step->seconds, REST, since);
        linear(&m->head, (int)m->bf16, b->normed, m->hidden, step->samples, step->logits, m->vocabulary,
               m->vocabulary, STORE);
        lap(step->seconds, HEAD, since);
    }
}
