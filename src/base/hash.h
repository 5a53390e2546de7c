/* SPDX-License-Identifier: Apache-2.0 */
/* Fast non-cryptographic hashes: the home of xxHash (XXH3). For fingerprints, file names and checksums against accidents, not against attackers. Room: base/hash.c. */
#ifndef M5_BASE_HASH_H
#define M5_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct m5_hash128 {
    uint64_t low, high;
} m5_hash128;

uint64_t m5_hash64(const void *p, size_t n);
m5_hash128 m5_hash128_of(const void *p, size_t n);

/* Incremental: the value after any sequence of updates equals the hash of the concatenation; reading it does not end the sequence. */
typedef struct m5_hasher m5_hasher;
m5_hasher *m5_hasher_new(void); /* NULL when out of memory; m5_hasher_free */
void m5_hasher_free(m5_hasher *h);
void m5_hasher_reset(m5_hasher *h);
void m5_hasher_update(m5_hasher *h, const void *p, size_t n);
m5_hash128 m5_hasher_value(const m5_hasher *h);

#endif
