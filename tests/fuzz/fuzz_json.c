/* SPDX-License-Identifier: Apache-2.0 */
/* base/json: any bytes; what parses must survive writing and reading back unchanged. */
#include "base/json.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    m5_json *v = NULL, *again = NULL;
    m5_json_limits lim = {.max_bytes = 1 << 20, .max_depth = 64, .any_root = true};
    if (m5_json_parse(&v, (const char *)data, n, &lim, NULL) != 0) return 0;
    m5_buf b = {0};
    m5_json_write(&b, v, 2);
    if (b.failed || m5_json_parse(&again, b.p, b.n, &lim, NULL) != 0 || !m5_json_equal(v, again)) abort();
    m5_buf_free(&b);
    m5_json_unref(again);
    m5_json_unref(v);
    return 0;
}
