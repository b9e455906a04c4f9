/* Why own products: torch's, for the few rows of a decode step, spend as long on dispatch and repacking as on
   arithmetic, and can't be fused with what follows. Method: Goto and van de Geijn (2008), without packing of the left
   side, whose rows are few and short enough to stay in the second-level cache.

   A row's sums don't depend on how many rows there are, or how they are shared out: a request gets the same logits, to
   the bit, alone and in any batch.

   Drawback: no bfloat16 or tile instructions. On a CPU that has them torch multiplies bfloat16, not this
   (workers/runners/decoder/runner.py); elsewhere bfloat16 is a format of storage, multiplied as floats. */
#include "gemm.h"

#include <omp.h>

#define K_BLOCK 256             /* of a panel: 16 KiB of floats, half a first-level cache */
#define ROW_BLOCK_BYTES 196608  /* of x: what should stay in the second-level cache */
#define MAX_ROW_BLOCK (16 * MAX_ROWS)

typedef struct {
    const Linear *weights;
    int bf16;
    const float *x;
    int64_t ldx;
} Left;

/* Some of a panel's lines, `some` of k from b, times rows [rows, some] at x. While a line is multiplied, memory brings
   its share of those that are multiplied after them. */
INLINE void block_product(const int bf16, int64_t some, const float *x, int64_t ldx, const void *b, int64_t rows,
                          float *c, int64_t ldc, int onto, const char *ahead, int64_t stride) {
    for (int64_t r = 0; r < rows; r += MAX_ROWS, ahead += some * stride) {
        const int64_t few = rows - r < MAX_ROWS ? rows - r : MAX_ROWS;
        multiply_rows((int)few, 2, bf16, some, x + r * ldx, ldx, b, PANEL, c + r * ldc, ldc, onto, ahead, stride);
    }
}

/* One panel's columns for some rows, [rows, PANEL] at c. */
INLINE void panel_product(const Left *left, const int bf16, int64_t panel, int64_t first_row, int64_t rows, float *c,
                          int64_t ldc, int onto) {
    const int64_t inputs = left->weights->inputs, line = PANEL * (bf16 ? 2 : 4);
    const char *base = (const char *)left->weights->panels + panel * inputs * line;
    const int64_t tiles = (rows + MAX_ROWS - 1) / MAX_ROWS, stride = (line + tiles - 1) / tiles;
    float floats[K_BLOCK * PANEL] __attribute__((aligned(64)));
    for (int64_t k = 0; k < inputs; k += K_BLOCK) {
        const int64_t some = inputs - k < K_BLOCK ? inputs - k : K_BLOCK;
        const float *x = left->x + first_row * left->ldx + k;
        const char *b = base + k * line, *ahead = b + K_BLOCK * line;
        if (bf16 && tiles > 1) { /* made floats once, not once a tile */
            for (int64_t i = 0; i < some * PANEL; i += LANES) store(floats + i, load_from(b, i, 1));
            block_product(0, some, x, left->ldx, floats, rows, c, ldc, onto || k > 0, ahead, stride);
        } else block_product(bf16, some, x, left->ldx, b, rows, c, ldc, onto || k > 0, ahead, stride);
    }
}

static void panel_columns(const Left *left, int64_t panel, int64_t first_row, int64_t rows, float *c, int64_t ldc,
                          int onto) {
    if (left->bf16) panel_product(left, 1, panel, first_row, rows, c, ldc, onto);
    else panel_product(left, 0, panel, first_row, rows, c, ldc, onto);
}

static void add_bias(const Linear *weights, int64_t panel, int64_t rows, float *c, int64_t ldc) {
    if (!weights->bias) return;
    const int64_t first = panel * PANEL, left = weights->outputs - first;
    const int64_t columns = left < PANEL ? left : PANEL;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < columns; i++) c[r * ldc + i] += weights->bias[first + i];
}

INLINE vf gated(vf gate, vf up, int gelu) {
    vf z = gate;
    /* gelu's tanh form is the sigmoid of twice its argument */
    if (gelu) z = splat(1.5957691216057308f) * (gate + splat(0.044715f) * gate * gate * gate);
    return gate / (splat(1) + exp_of(-z)) * up;
}

static void gate_panels(const Left *left, int64_t pair, int64_t first_row, int64_t rows, float *out, int64_t ldo,
                        int64_t columns, int gelu) {
    float both[MAX_ROW_BLOCK * 2 * PANEL] __attribute__((aligned(64)));
    for (int side = 0; side < 2; side++) {
        panel_columns(left, 2 * pair + side, first_row, rows, both + side * PANEL, 2 * PANEL, 0);
        add_bias(left->weights, 2 * pair + side, rows, both + side * PANEL, 2 * PANEL);
    }
    const int64_t room = columns - pair * PANEL;
    for (int64_t r = 0; r < rows; r++) {
        float *gate = both + r * 2 * PANEL, *to = out + (first_row + r) * ldo + pair * PANEL;
        for (int v = 0; v < PANEL; v += LANES) store(gate + v, gated(load(gate + v), load(gate + PANEL + v), gelu));
        memcpy(to, gate, sizeof(float) * (size_t)(room < PANEL ? room : PANEL));
    }
}

static void plain_panel(const Left *left, int64_t panel, int64_t first_row, int64_t rows, float *out, int64_t ldo,
                        int64_t columns, int add) {
    const int64_t room = columns - panel * PANEL;
    float *to = out + first_row * ldo + panel * PANEL;
    if (room >= PANEL) {
        panel_columns(left, panel, first_row, rows, to, ldo, add);
        add_bias(left->weights, panel, rows, to, ldo);
        return;
    }
    float edge[MAX_ROW_BLOCK * PANEL] __attribute__((aligned(64)));
    panel_columns(left, panel, first_row, rows, edge, PANEL, 0);
    add_bias(left->weights, panel, rows, edge, PANEL);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < room; i++) to[r * ldo + i] = edge[r * PANEL + i] + (add ? to[r * ldo + i] : 0);
}

void linear(const Linear *weights, int bf16, const float *x, int64_t ldx, int64_t rows, float *out, int64_t ldo,
            int64_t columns, enum Then then) {
    const Left left = {weights, bf16, x, ldx};
    const int64_t panels = (weights->outputs + PANEL - 1) / PANEL;
    const int64_t units = then >= GATE_SILU ? panels / 2 : panels;
    int64_t block = ROW_BLOCK_BYTES / 4 / weights->inputs / MAX_ROWS * MAX_ROWS;
    block = block < 4 * MAX_ROWS ? 4 * MAX_ROWS : block > MAX_ROW_BLOCK ? MAX_ROW_BLOCK : block;
    const int64_t blocks = (rows + block - 1) / block;
    int64_t share = units / (8 * omp_get_num_threads());
    share = share < 1 ? 1 : share;
    const int64_t shares = (units + share - 1) / share;
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < shares * blocks; task++) {
        const int64_t first_row = task / shares * block, first = task % shares * share;
        const int64_t some = rows - first_row < block ? rows - first_row : block;
        for (int64_t unit = first; unit < first + share && unit < units; unit++) {
            if (then >= GATE_SILU) gate_panels(&left, unit, first_row, some, out, ldo, columns, then == GATE_GELU);
            else plain_panel(&left, unit, first_row, some, out, ldo, columns, then == ADD);
        }
    }
}

/* Weights [outputs, inputs], row-major and of the same format, into panels; what is behind the last output is 0. The
   first panel becomes panel `first`, and each next one the one `step` further. */
void pack_panels(const void *weights, int bf16, int64_t outputs, int64_t inputs, void *panels, int64_t first,
                 int64_t step, int threads) {
    const int64_t count = (outputs + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t panel = 0; panel < count; panel++)
        for (int64_t k = 0; k < inputs; k++)
            for (int64_t i = 0; i < PANEL; i++) {
                const int64_t row = panel * PANEL + i, to = ((first + panel * step) * inputs + k) * PANEL + i;
                const int inside = row < outputs;
                if (bf16) ((uint16_t *)panels)[to] = inside ? ((const uint16_t *)weights)[row * inputs + k] : 0;
                else ((float *)panels)[to] = inside ? ((const float *)weights)[row * inputs + k] : 0;
            }
}

int64_t panel_width(void) { return PANEL; }
