/* How fast the threads together can read memory: the limit that a decode step is measured against. */
#include <omp.h>

#include "simd.h"

#define STREAMS 8

/* Reads `count` floats, a multiple of STREAMS * LANES a thread, and returns the seconds it took. */
double read_floats(const float *from, int64_t count, int threads) {
    float total = 0;
    const double since = omp_get_wtime();
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
        const int64_t share = count / omp_get_num_threads();
        const float *mine = from + share * omp_get_thread_num();
        vf sum[STREAMS] = {{0}};
        for (int64_t i = 0; i + STREAMS * LANES <= share; i += STREAMS * LANES)
#pragma GCC unroll 8
            for (int s = 0; s < STREAMS; s++) sum[s] += load(mine + i + s * LANES);
        for (int s = 0; s < STREAMS; s++) total += sum_of(sum[s]);
    }
    /* The sum must be used, or the reads are left out. */
    return omp_get_wtime() - since + (total == -1.0f ? 1e-12 : 0);
}
