/* Products with packed weights, shared out over the threads of the parallel region that calls. */
#pragma once

#include "simd.h"

#define PANEL (2 * LANES) /* output columns that are stored together */

enum Then { STORE, ADD, GATE_SILU, GATE_GELU };

/* y = x W' + bias. A panel holds PANEL columns, k by k: one read, forward, whatever the number of rows. */
typedef struct {
    int64_t outputs; /* before padding to whole panels */
    int64_t inputs;
    const void *panels; /* [ceil(outputs / PANEL), inputs, PANEL] */
    const float *bias;  /* [outputs] or null */
} Linear;

/* `then`: write to out; add onto it; or, panels 2j and 2j + 1 being gate and up, write activation(gate) * up to columns
   j * PANEL ... of out. `columns`: valid ones of out. All threads of a region call it, and all return when it is done. */
void linear(const Linear *weights, int bf16, const float *x, int64_t ldx, int64_t rows, float *out, int64_t ldo,
            int64_t columns, enum Then then);
