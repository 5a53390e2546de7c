/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over every file of the given folders, and over mutations of each: bit flips, cuts, doubled pieces, from a fixed seed. This is how
 * the corpora run as plain tests; with clang and M5_FUZZ=ON the same targets are libFuzzer programs. Usage: <target> [-n MUTATIONS] FOLDER... */
#include "base/err.h"
#include "base/mem.h"
#include "base/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t rng_state = 0x9E3779B97F4A7C15u;

static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

/* Copies data with a few random damages into out (room for 2 n + 64); returns the new length. */
static size_t mutate(const uint8_t *data, size_t n, uint8_t *out)
{
    memcpy(out, data, n);
    size_t len = n;
    for (uint64_t k = 1 + rng() % 4; k > 0; k--) {
        size_t at = len ? (size_t)(rng() % len) : 0;
        switch (rng() % 5) {
        case 0:
            if (len) out[at] ^= (uint8_t)(1u << rng() % 8);
            break;
        case 1:
            if (len) out[at] = (uint8_t)rng();
            break;
        case 2: len = at; break;
        case 3: {
            size_t piece = len - at < n - n / 2 ? len - at : n - n / 2;
            if (len + piece > 2 * n + 64) break;
            memmove(out + at + piece, out + at, len - at);
            len += piece;
            break;
        }
        default:
            if (len >= 8) {
                static const uint64_t edges[] = {0, 1, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};
                memcpy(out + at % (len - 7), &edges[rng() % 6], rng() % 2 ? 8 : 4);
            }
            break;
        }
    }
    return len;
}

/* Runs one input from an exactly sized heap copy, so that the sanitizers see every read beyond its end. */
static void run_exact(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy) return;
    memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

int main(int argc, char **argv)
{
    long n_mutation = 200, n_run = 0;
    m5_log_set_level(M5_LOG_ERROR);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0 && i + 1 < argc) {
            n_mutation = atol(argv[++i]);
            continue;
        }
        char **names = NULL;
        size_t n_name = 0;
        m5_error err = {0};
        if (m5_dir_list(&names, &n_name, argv[i], &err) != 0) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        for (size_t k = 0; k < n_name; k++) {
            char path[4096];
            char *data = NULL;
            size_t n = 0;
            snprintf(path, sizeof path, "%s/%s", argv[i], names[k]);
            m5_free(names[k]);
            if (m5_file_read(&data, &n, path, (size_t)64 << 20, &err) != 0) {
                fprintf(stderr, "%s\n", err.text);
                return 1;
            }
            run_exact((const uint8_t *)data, n);
            n_run++;
            uint8_t *out = malloc(2 * n + 64);
            for (long m = 0; out && m < n_mutation; m++, n_run++) run_exact(out, mutate((const uint8_t *)data, n, out));
            free(out);
            m5_free(data);
        }
        m5_free(names);
    }
    printf("%ld inputs ran\n", n_run);
    return n_run > 0 ? 0 : 77;
}
