/* SPDX-License-Identifier: Apache-2.0 */
/* Home of xxHash. */
#include "base/hash.h"

#include "base/mem.h"

#include <xxhash.h>

struct m5_hasher {
    XXH3_state_t *state;
};

uint64_t m5_hash64(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

m5_hash128 m5_hash128_of(const void *p, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(p, n);
    return (m5_hash128){h.low64, h.high64};
}

m5_hasher *m5_hasher_new(void)
{
    m5_hasher *h = m5_calloc(M5_MEM_MISC, 1, sizeof *h);
    if (!h) return NULL;
    h->state = XXH3_createState();
    if (!h->state) {
        m5_free(h);
        return NULL;
    }
    m5_hasher_reset(h);
    return h;
}

void m5_hasher_free(m5_hasher *h)
{
    if (!h) return;
    XXH3_freeState(h->state);
    m5_free(h);
}

void m5_hasher_reset(m5_hasher *h)
{
    XXH3_128bits_reset(h->state);
}

void m5_hasher_update(m5_hasher *h, const void *p, size_t n)
{
    XXH3_128bits_update(h->state, p, n);
}

m5_hash128 m5_hasher_value(const m5_hasher *h)
{
    XXH128_hash_t v = XXH3_128bits_digest(h->state);
    return (m5_hash128){v.low64, v.high64};
}
